"""Many processes, one key."""

from __future__ import annotations

import statistics
from typing import Any

from bench import contenders
from bench.contenders import Count
from bench.crew import Crew
from bench.results import Result, Row
from bench.rival_tables import Bare
from bench.servers import World

from .databases import TITLES

NEEDS = {"postgres", "mariadb", "redis"}
FEW = 3  # rounds of a quick run


def run(world: World, quick: bool) -> list[Result]:
    if quick:
        return [_contended(world, "postgres", 32, 0.6, 3)]
    results = [_contended(world, "postgres", size, 1.0, 5) for size in (2, 8, 32)]
    results += [_contended(world, "mariadb", size, 1.0, 3) for size in (2, 8, 32)]
    return results + [_waited(world, kind, 8, 1.5) for kind in ("redis", "postgres", "notify", "mariadb")]


def _contended(world: World, kind: str, size: int, seconds: float, rounds: int) -> Result:
    from django.db import connections

    Bare(connections[kind].vendor, connections[kind].cursor)  # makes the table before they race for it
    crew = Crew(world, size)
    jobs: dict[str, tuple[Any, ...]] = {
        "django_locks": (contenders.ours, kind, "contended", seconds),
        "plain upsert": (contenders.bare, kind, "contended", seconds),
        "django_locks, a key each": (contenders.distinct, kind, "distinct", seconds, "ours"),
        "plain upsert, a key each": (contenders.distinct, kind, "distinct", seconds, "bare"),
    }
    same = {who: job for who, job in jobs.items() if "each" not in who}
    try:
        counts = _in_turn(crew, same, rounds)
        if rounds > FEW:
            counts |= _in_turn(crew, {who: job for who, job in jobs.items() if "each" in who}, 2)
    finally:
        crew.close()
    result = Result(f"{TITLES[kind]}: {size} processes that try one key without a pause", unit="acquisitions/s")
    for who, found in counts.items():
        result.rows.append(Row(who, statistics.median(map(_granted, found)), note=f"{_tried(found):,.0f} attempts/s"))
    if kind == "postgres" and size == 32:
        pairs = zip(counts["django_locks"], counts["plain upsert"], strict=True)
        result.ratios["postgres_contended_vs_upsert"] = statistics.median(_granted(a) / _granted(b) for a, b in pairs)
    return result


def _waited(world: World, alias: str, size: int, seconds: float) -> Result:
    crew = Crew(world, size)
    try:
        found = [crew.run(contenders.waiting, alias, "waited", seconds) for _ in range(2)]
    finally:
        crew.close()
    result = Result(f"{alias}: {size} processes that wait for one key, empty bodies", unit="acquisitions/s")
    result.rows.append(Row("django_locks", statistics.median(map(_granted, found))))
    return result


def _in_turn(crew: Crew, jobs: dict[str, tuple[Any, ...]], rounds: int) -> dict[str, list[list[Count]]]:
    found: dict[str, list[list[Count]]] = {who: [] for who in jobs}
    for _ in range(rounds):
        for who, job in jobs.items():
            found[who].append(crew.run(*job))
    return found


def _granted(counts: list[Count]) -> float:
    return sum(count.granted / count.seconds for count in counts) or 1.0


def _tried(rounds: list[list[Count]]) -> float:
    return statistics.median(sum(count.tried / count.seconds for count in counts) for counts in rounds)
