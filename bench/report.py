"""Results for people and for programs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import chart
from .results import TARGETS, Result
from .servers import World

PACKAGES = ("django", "redis", "hiredis", "psycopg", "mysqlclient", "pymysql")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def environment(world: World, *, quick: bool, seconds: float) -> dict[str, Any]:
    """Return on what the figures were measured."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": packages,
        "servers": _servers(world),
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}",
        "load": round(os.getloadavg()[0], 1),
        "quick": quick,
        "seconds": round(seconds),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _servers(world: World) -> dict[str, str]:
    from django.db import connections

    found = {}
    for kind in ("postgres", "mariadb", "sqlite"):
        if world.has(kind):
            found[kind] = ".".join(map(str, connections[kind].get_database_version()))
    if world.has("redis"):
        import redis

        found["redis"] = str(redis.Redis.from_url(world.redis_url).info("server")["redis_version"])
    return found


def ratios(results: list[Result]) -> dict[str, float]:
    """Return the figures that have a target, in the order of the targets."""
    found = {key: value for result in results for key, value in result.ratios.items()}
    return {key: round(found[key], 3) for key in TARGETS if key in found}


def as_object(results: list[Result], about: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    return {
        "ratios": ratios(results),
        "met": {key: TARGETS[key].is_met(value) for key, value in ratios(results).items()},
        "environment": about,
        "results": [{**asdict(result), "rows": [row._asdict() for row in result.rows]} for result in results],
        "notes": notes,
    }


def as_text(results: list[Result], about: dict[str, Any], notes: list[str]) -> str:
    """Return the ratios, then the tables, in Markdown."""
    parts = ["## Ratios\n\n" + _ratio_table(ratios(results)), _about(about)]
    parts += [_table(result) for result in results]
    if notes:
        parts.append("## Left out\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _ratio_table(found: dict[str, float]) -> str:
    lines = ["| figure | measured | wanted | |", "|---|--:|--:|---|"]
    for key, value in found.items():
        lines.append(f"| `{key}` | {value:.2f} | {TARGETS[key]} | {'✓' if TARGETS[key].is_met(value) else '✗'} |")
    return "\n".join(lines)


def _about(about: dict[str, Any]) -> str:
    software = {"Python": about["python"], **about["packages"], **about["servers"]}
    versions = ", ".join(f"{name} {version}" for name, version in software.items())
    kind = "quick run" if about["quick"] else "full run"
    return f"Measured on {about['machine']}, load {about['load']}; {versions}; {kind} of {about['seconds']} s."


def _table(result: Result) -> str:
    base = result.rows[0].median if result.rows else 0
    lines = [f"### {result.title}\n", f"| | median, {result.unit} | p99 | times the first | |", "|---|--:|--:|--:|---|"]
    for row in result.rows:
        p99 = "" if row.p99 is None else _figure(row.p99)
        times = f"{row.median / base:.2f}" if base else ""
        lines.append(f"| {row.who} | {_figure(row.median)} | {p99} | {times} | {row.note} |")
    return "\n".join([*lines, *(f"\n{note}" for note in result.notes)])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(docs: Path, results: list[Result], about: dict[str, Any], notes: list[str]) -> None:
    """Put the tables between the marks of docs/benchmarks.md, and draw the chart."""
    page = docs / "benchmarks.md"
    text = page.read_text()
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{head}{BEGIN}\n\n{as_text(results, about, notes)}\n{END}{tail}")
    (docs / "images").mkdir(exist_ok=True)
    (docs / "images" / "benchmarks.svg").write_text(chart.draw(results))
