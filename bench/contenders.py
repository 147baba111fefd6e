"""Jobs of a `Crew`: take and give back a lock as often as possible, and count."""

from __future__ import annotations

import secrets
import time
from typing import Any, NamedTuple

from .rival_tables import Bare

_bare: dict[tuple[str, str], Bare] = {}


class Count(NamedTuple):
    """What one process has reached."""

    granted: int
    tried: int
    seconds: float


def ours(barrier: Any, alias: str, name: str, seconds: float) -> Count:
    """Try without a pause."""
    from django_locks import locks

    service = locks.using(alias)
    service.get(name)  # connect before the start
    barrier.wait(60)
    granted, tried, begin = 0, 0, time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        tried += 1
        guard = service.try_acquire(name)
        if guard is not None:
            granted += 1
            guard.release()
    return Count(granted, tried, now - begin)


def waiting(barrier: Any, alias: str, name: str, seconds: float) -> Count:
    """Wait for the lock, as an application does."""
    from django_locks import locks

    service = locks.using(alias)
    service.get(name)
    barrier.wait(60)
    granted, begin = 0, time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        with service.lock(name, wait=30):
            granted += 1
    return Count(granted, granted, now - begin)


def bare(barrier: Any, alias: str, name: str, seconds: float) -> Count:
    """Do as `ours` with a plain upsert."""
    from django.db import connections

    if (alias, name) not in _bare:
        _bare[alias, name] = Bare(connections[alias].vendor, connections[alias].cursor, name)
    lock = _bare[alias, name]
    barrier.wait(60)
    granted, tried, begin, owner = 0, 0, time.monotonic(), secrets.token_hex(16)
    while (now := time.monotonic()) - begin < seconds:
        tried += 1
        if lock.take(owner):
            granted += 1
            lock.free(owner)
    return Count(granted, tried, now - begin)


def distinct(barrier: Any, alias: str, name: str, seconds: float, how: str) -> Count:
    """Let each process have a name of its own."""
    import os

    return {"ours": ours, "bare": bare}[how](barrier, alias, f"{name}:{os.getpid()}", seconds)
