"""Listing the live leases of a large store. Full run only."""

from __future__ import annotations

from bench.results import Result
from bench.servers import World
from bench.timing import interleaved

NEEDS = {"redis"}
LIVE = 10_000


def run(world: World, quick: bool) -> list[Result]:
    return [] if quick else [_listed(alias) for alias in ("default", "redis") if world.has(alias)]


def _listed(alias: str) -> Result:
    from django_locks import locks
    from django_locks.conf import entries

    store, service = entries(alias).store, locks.using(alias)
    for place in range(LIVE):
        store.acquire(f"listed:{place}", "owner", 600, "host:1:MainThread")
    result = Result(f"{alias}: listing {LIVE:,} live leases", unit="ms")
    contestants = {"all": lambda: list(service.leases()), "a prefix of ten": lambda: list(service.leases("listed:123"))}
    result.take(interleaved(contestants, 3.0, 1), 1e3)
    for place in range(LIVE):
        store.release(f"listed:{place}", "owner")
    return result
