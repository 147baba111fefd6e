"""Measure a store by real locks of its own: how long the verbs take, and what its clock says."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, TypeVar

from django_locks import clock
from django_locks.stores.base import BaseStore
from django_locks.values import clean_holder, default_holder, new_owner

T = TypeVar("T")

NAME = "django_locks:doctor"
ROUNDS = 20
LONGEST = 5.0  # seconds for all rounds
TTL = 30.0


class Measured(NamedTuple):
    """Seconds: of each call by verb; how far the host's clock is ahead of the store's; how far that may be wrong."""

    latencies: dict[str, list[float]]
    ahead: float
    doubt: float


def measure(store: BaseStore, prefix: str) -> Measured | str:
    """Take, renew and give back a lock again and again; return what was measured, or what went wrong.

    Raises `StoreUnavailable`.
    """
    key, holder, start = prefix + NAME, clean_holder(default_holder()), clock.now()
    latencies: dict[str, list[float]] = {"acquire": [], "renew": [], "release": []}
    best: tuple[float, float] | None = None
    fence = 0
    for _ in range(ROUNDS):
        owner, asked_at = new_owner(), clock.wall()
        granted = _timed(latencies["acquire"], lambda: store.acquire(key, owner, TTL, holder))  # noqa: B023
        took = latencies["acquire"][-1]
        if granted is None:
            return "another doctor is at work, or died less than 30 s ago: try again"
        lease = store.get(key)
        renewed = _timed(latencies["renew"], lambda: store.renew([(key, owner, TTL)]))  # noqa: B023
        released = _timed(latencies["release"], lambda: store.release(key, owner))  # noqa: B023
        if lease is None or renewed != {key} or not released or granted <= fence:
            return "a lease was not kept, or its fence did not rise: do not trust this store"
        fence = granted
        ahead = (asked_at + timedelta(seconds=took / 2) - lease.acquired_at).total_seconds()
        if best is None or took / 2 < best[1]:
            best = (ahead, took / 2)
        if clock.now() - start > LONGEST:
            break
    assert best is not None  # noqa: S101
    return Measured(latencies, *best)


def _timed(times: list[float], call: Callable[[], T]) -> T:
    begun = time.perf_counter()
    result = call()
    times.append(time.perf_counter() - begun)
    return result


def percentile(times: list[float], share: float) -> float:
    """Return the time below which so large a share of the times is."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
