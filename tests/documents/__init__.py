"""The code blocks of README.md and docs/, and what each of them needs to be run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>\S*)")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


class Block(NamedTuple):
    """A fenced block. ``reason``: why it is only read, as a comment before it says; or nothing."""

    page: Path
    line: int  #: of its first line of text
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order, without those that only Sphinx reads (``{toctree}`` and the like)."""
    lines, number, reason = page.read_text(encoding="utf-8").splitlines(), 0, ""
    while number < len(lines):
        fence = FENCE.match(lines[number])
        number += 1
        if fence is None:
            marker = NOT_RUN.search(lines[number - 1])
            reason = marker[1] if marker else reason if not lines[number - 1].strip() else ""
            continue
        start = number
        while lines[number].strip() != fence["ticks"]:
            number += 1
        text = "\n".join(line.removeprefix(fence["indent"]) for line in lines[start:number])
        number += 1
        if not fence["language"].startswith("{"):
            yield Block(page, start + 1, fence["language"], text, reason)
        reason = ""


def outside(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are in no fence, with their numbers."""
    ticks = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if ticks:
            ticks = "" if line.strip() == ticks else ticks
        elif fence := FENCE.match(line):
            ticks = fence["ticks"]
        else:
            yield number, line
