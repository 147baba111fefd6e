"""An hour of a busy site in seconds: afterwards, memory, threads, sockets, sessions, keys and rows are as before."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from django.db import connections

from django_locks import LockGuard, conf, locks
from django_locks.stores.base import BROKEN
from tests.conftest import STORES

LONG = os.environ.get("LONG") == "1"
WORKERS = 4
CACHED = 2500  # names: more than the package remembers as clean, so that the memory for it is there before

#: Takes, names and lost leases.
WHOLE = (1_000_000, 100_000, 10_000)
PART = (4_000, 2_500, 40)


class Usage(NamedTuple):
    """What this process and its store have in use."""

    blocks: int  #: of memory, as Python counts what its objects take
    threads: int
    descriptors: int
    sessions: int
    records: int


class Site:
    """A store seen from outside."""

    def __init__(self, entry: dict[str, Any]) -> None:
        location = entry["LOCATION"]
        self.clients: list[redis.Redis] = []
        self.observer = ""
        if "Redis" in entry["BACKEND"]:
            self.clients = [
                redis.Redis.from_url(url) for url in ([location] if isinstance(location, str) else location)
            ]
        elif "Database" in entry["BACKEND"]:
            self.observer = location

    def sessions(self) -> int:
        if self.clients:
            return sum(len(client.client_list()) for client in self.clients)
        if not self.observer or connections[self.observer].vendor == "sqlite":
            return 0
        postgresql = connections[self.observer].vendor == "postgresql"
        count = (
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            if postgresql
            else "SELECT count(*) FROM information_schema.PROCESSLIST WHERE USER <> 'system user'"
        )
        with connections[self.observer].cursor() as cursor:
            cursor.execute(count)
            return int(cursor.fetchone()[0])

    def records(self) -> int:
        store = conf.entries("default").store
        store.prune(0)
        if self.clients:
            # A bucket's highest fence stays for ever: one key, or the 64 of a cluster.
            return sum(1 for client in self.clients for key in client.keys("*") if not key.endswith(b":fence"))
        if self.observer:
            from django_locks.models import Lease

            return Lease.objects.using(self.observer).count()
        return len(store._table.leases)  # type: ignore[attr-defined]

    def usage(self) -> Usage:
        records = self.records()
        sessions = self.sessions()
        gc.collect()
        descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        return Usage(sys.getallocatedblocks(), threading.active_count(), descriptors, sessions, records)


def live_an_hour(takes: int, names: int, losses: int) -> None:
    workers = [
        threading.Thread(target=take_and_release, args=(takes // WORKERS, number, names)) for number in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _ in range(3):
        asyncio.run(take_async(20))
    for number in range(losses):
        lose_one(f"lost {number}")


def take_and_release(takes: int, worker: int, names: int) -> None:
    store = conf.entries("default").store
    try:
        for number in range(takes):
            guard = locks.try_acquire(f"name {(number * WORKERS + worker) % names}")
            if guard is not None:
                guard.release()
    finally:
        store.leave_thread()


async def take_async(takes: int) -> None:
    for number in range(takes):
        async with locks.lock(f"async {number}"):
            pass


lost: list[str] = []


def lose_one(name: str) -> None:
    """Lose a lease as its holder does whose renewal is refused."""
    guard = locks.acquire(name, on_lost=tell)
    guard.store.release(guard.key, guard.owner, outcome=BROKEN)
    guard.refused()


def tell(guard: LockGuard) -> None:
    lost.append(guard.name)


def settled(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(7200 if LONG else 180)
@pytest.mark.parametrize("kind", STORES)
def test_nothing_is_left_of_an_hour(kind: str, spec_of: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = spec_of(kind).locks
    settings.LOCKS = {"default": entry}
    monkeypatch.setattr(logging.getLogger("django_locks"), "disabled", True)  # pytest keeps each record
    site = Site(entry)
    takes, names, losses = WHOLE if LONG or kind == "memory" else PART
    live_an_hour(CACHED, CACHED, 20)
    assert settled(lambda: not busy_threads()), busy_threads()
    before = site.usage()
    lost.clear()

    started = time.perf_counter()
    live_an_hour(takes, names, losses)
    assert settled(lambda: len(lost) == losses)
    took = time.perf_counter() - started
    lost.clear()

    with contextlib.suppress(AssertionError):
        settled(lambda: site.usage().threads <= before.threads and site.usage().sessions <= before.sessions)
    after = site.usage()
    print(f"{kind}: {takes} takes of {names} names and {losses} losses in {took:.1f} s; {before} -> {after}")
    assert after.blocks - before.blocks < 1000
    assert after.threads <= before.threads
    assert after.descriptors <= before.descriptors + 1
    assert after.sessions <= before.sessions
    assert (before.records, after.records) == (0, 0)


def busy_threads() -> list[str]:
    """Return the package's threads, but the four for synchronous stores of async code, which stay."""
    return [each.name for each in threading.enumerate() if each.name.startswith("django_locks ")]
