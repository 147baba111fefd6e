"""Does a pair cost more in a large table?"""

from __future__ import annotations

from typing import Any

from bench.results import Result
from bench.servers import World
from bench.timing import interleaved, ratio

from .databases import TITLES
from .memory import pair

NEEDS = {"postgres", "mariadb", "sqlite"}
SMALL = 1_000

#: A row for each name, most of them free: n names with the number in the middle, so that the index has some depth.
NUMBERS = {
    "postgresql": "SELECT generate_series(1, {count}) AS n",
    "mysql": "SELECT seq AS n FROM seq_1_to_{count}",
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s",
}
NAME = {
    "postgresql": "'job:' || s.n || ':import'",
    "mysql": "CONCAT('job:', s.n, ':import')",
    "sqlite": "'job:' || s.n || ':import'",
}


def run(world: World, quick: bool) -> list[Result]:
    large = 100_000 if quick else 1_000_000
    return [_rows(kind, large, quick) for kind in TITLES if world.has(kind)]


def _rows(kind: str, large: int, quick: bool) -> Result:
    from django_locks import locks

    fill(f"{kind}_small", SMALL)
    fill(f"{kind}_large", large)
    small, big = locks.using(f"{kind}_small"), locks.using(f"{kind}_large")
    names = _names(large)
    one, other = f"{SMALL:,} rows", f"{large:,} rows"
    contestants = {
        one: lambda: pair(small, f"job:{next(names) % SMALL + 1}:import"),
        other: lambda: pair(big, f"job:{next(names)}:import"),
    }
    samples = interleaved(contestants, 0.6 if quick else 10, 10)
    result = Result(f"{TITLES[kind]}: a pair in a table of")
    result.take(samples)
    result.ratios[f"{kind}_rows"] = ratio(samples, other, one)
    if quick:
        result.notes.append("The quick run stops at 1e5 rows; the full one goes to 1e6.")
    return result


def _names(count: int) -> Any:
    place = 0
    while True:
        place = (place * 1_103_515_245 + 12_345) % 2**31
        yield place % count + 1


def fill(alias: str, count: int) -> None:
    """Let the table hold so many rows."""
    from django.db import connections

    connection = connections[alias]
    numbers = NUMBERS[connection.vendor].format(count=count)
    columns = "name, owner, holder, fence, acquired_at, expires_at, released_at, outcome"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO django_locks_lease ({columns}) SELECT {NAME[connection.vendor]}, '', 'host:1:MainThread', "
            f"1700000000000000, 1700000000000000, 1700000000000000, 1700000000000000, 'released' FROM ({numbers}) s"
        )
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM ANALYZE django_locks_lease")
