"""Does a pair cost more among many live leases: keys of Redis, and entries in memory?"""

from __future__ import annotations

from typing import Any

from bench.results import Result
from bench.servers import World
from bench.timing import interleaved

from .memory import pair

NEEDS = {"redis"}
SMALL = 1_000
BATCH = 1_000
TTL = 3_600.0  # seconds: they outlive the run
TITLES = {
    "redis": "Redis: a pair, while others hold so many leases",
    "memory": "Memory store: a pair, while others hold so many",
}


def run(world: World, quick: bool) -> list[Result]:
    large = 10_000 if quick else 1_000_000
    return [_entries(kind, large, quick) for kind in TITLES if world.has(f"{kind}_large")]


def _entries(kind: str, large: int, quick: bool) -> Result:
    from django_locks import locks

    counts = {f"{kind}_small": SMALL, f"{kind}_large": large}
    for alias, count in counts.items():
        _take(alias, count)
    contestants = {f"{count:,}": _taker(locks.using(alias)) for alias, count in counts.items()}
    result = Result(TITLES[kind])
    result.take(interleaved(contestants, 0.5 if quick else 5, 20 if kind == "redis" else 200))
    for alias in counts:
        _clear(alias)
    return result


def _taker(service: Any) -> Any:
    return lambda: pair(service)


def _take(alias: str, count: int) -> None:
    """Let so many leases be held."""
    from django_locks.conf import entries

    store = entries(alias).store
    names = (f"job:{number}:import" for number in range(count))
    if not alias.startswith("redis"):
        for name in names:
            store.acquire(name, "another", TTL, "host:1:MainThread")
        return
    with _client(store) as client, client.pipeline(transaction=False) as pipeline:
        store.acquire("first", "another", TTL, "host:1:MainThread")  # loads the script
        for number, name in enumerate(names, 1):
            script, arguments, _ = store._wire.acquire(name, "another", TTL, "host:1:MainThread")
            pipeline.execute_command("EVALSHA", script.sha, *arguments)
            if number % BATCH == 0 or number == count:
                pipeline.execute()


def _clear(alias: str) -> None:
    from django_locks.conf import entries

    store = entries(alias).store
    if not alias.startswith("redis"):
        store._table.clear()
        return
    with _client(store) as client:
        client.flushdb()


def _client(store: Any) -> Any:
    import redis

    return redis.Redis.from_url(store.location)
