"""A chart of the pairs as SVG, for light and dark pages."""

from __future__ import annotations

from html import escape

from .results import Result

CHARTED = ("Redis: acquire and release", "PostgreSQL: acquire and release", "MariaDB: acquire and release")
WIDTH, LABELS, BAR, GAP, TITLE = 760, 300, 16, 7, 34
STYLE = """
.page { fill: #ffffff; } text { font: 13px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; }
.ours { fill: #0b6e4f; } .other { fill: #9aa4af; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; } text { fill: #e6edf3; } .ours { fill: #3fb68b; } .other { fill: #57606a; }
}
"""


def draw(results: list[Result]) -> str:
    """Return the bars of the charted results, one group below the other."""
    parts, top = [], 0
    for result in results:
        if result.title in CHARTED:
            drawn, top = _group(result, top)
            parts += drawn
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + GAP}" role="img">'
    title = "<title>What acquire and release take, in microseconds: shorter is better</title>"
    page = f'<rect class="page" width="{WIDTH}" height="{top + GAP}" rx="8"/>'  # the page's theme may be another one
    return f"{frame}{title}<style>{STYLE}</style>\n{page}\n" + "\n".join(parts) + "\n</svg>\n"


def _group(result: Result, top: int) -> tuple[list[str], int]:
    parts = [f'<text class="title" x="8" y="{top + 22}">{escape(result.title)}, µs</text>']
    top += TITLE
    rows = sorted(result.rows, key=lambda row: row.median)
    scale = (WIDTH - LABELS - 70) / max(row.median for row in rows)
    for row in rows:
        kind, width = ("ours" if row.who == "django_locks" else "other"), max(1, row.median * scale)
        middle = top + BAR - 4
        parts.append(f'<text x="{LABELS - 8}" y="{middle}" text-anchor="end">{escape(_short(row.who))}</text>')
        parts.append(f'<rect class="{kind}" x="{LABELS}" y="{top}" width="{width:.0f}" height="{BAR}" rx="2"/>')
        parts.append(f'<text x="{LABELS + width + 6:.0f}" y="{middle}">{row.median:,.0f}</text>')
        top += BAR + GAP
    return parts, top + GAP


def _short(text: str) -> str:
    return text if len(text) <= 44 else f"{text[:43]}…"
