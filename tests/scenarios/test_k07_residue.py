"""K07: a refused, timed-out or half-done attempt leaves something behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
import redis

from django_locks import LockError, LockNotAcquired, holding, locks
from tests.crew import Spec, process
from tests.scenarios.actors import Actor, elsewhere, eventually, held_elsewhere, store


def give_up(name: str) -> bool:
    try:
        locks.acquire(name, wait=0.1)
    except LockNotAcquired:
        return True
    return False


def records(spec: Spec, name: str) -> int:
    """Count what the store keeps that has to do with the name, and with waiting for it."""
    if "MemoryStore" in spec.locks["BACKEND"]:
        return len([key for key in store()._table.leases if name in key])  # type: ignore[attr-defined]
    if "DatabaseStore" in spec.locks["BACKEND"]:
        from django_locks.models import Lease  # not before the settings, in a process of its own

        return Lease.objects.using(spec.locks["LOCATION"]).filter(name__contains=name).count()
    location = spec.locks["LOCATION"]
    keys: list[bytes] = []
    for url in location if isinstance(location, list) else [location]:
        with redis.Redis.from_url(url) as client:
            keys += client.keys("*")
    assert all(key.rpartition(b":")[2] in (b"fence", b"index") or b":lease:" in key for key in keys), keys
    return len([key for key in keys if name.encode() in key])


def test_waiters_that_gave_up_leave_nothing(any_store: Spec, name: str) -> None:
    """B025"""
    with held_elsewhere(name) as a:
        known, threads = len(holding.held_by), threading.active_count()
        waiters = [Actor(give_up, name) for _ in range(50)]
        assert all(waiter.result() for waiter in waiters)
        assert len(holding.held_by) == known
        eventually(lambda: threading.active_count() <= threads, within=3)
        assert records(any_store, name) == 1
        assert a.release() is True
    c = locks.try_acquire(name)
    assert c is not None
    assert records(any_store, name) == 1
    c.release()


def wait_five_times(pipe: Any, name: str) -> None:
    for _ in range(5):
        Actor(locks.acquire, name, wait=None)
    pipe.send("wait")
    time.sleep(60)


def test_waiters_that_are_killed_leave_nothing(shared_store: Spec, name: str) -> None:
    """B025"""
    with held_elsewhere(name) as a:
        with process(shared_store, wait_five_times, name) as waiters:
            assert waiters.pipe.recv() == "wait"  # type: ignore[attr-defined]
            time.sleep(0.3)
        assert waiters.exitcode == -signal.SIGKILL
        assert records(shared_store, name) == 1
        assert a.release() is True
    c = locks.try_acquire(name)
    assert c is not None
    c.release()


@pytest.mark.usefixtures("any_store")
def test_ttl_counts_from_the_grant_and_not_from_the_wait(name: str) -> None:
    """B027"""
    with held_elsewhere(name, seconds=0.8):
        b = locks.acquire(name, ttl=0.5, renew=False, wait=5)
        assert b.remaining > 0.4 - 0.1
        assert locks.get(name).remaining > 0.4 - 0.1
        assert elsewhere(locks.try_acquire, name) is None
        granted = time.monotonic()
        eventually(lambda: elsewhere(taken_for_a_moment, name), within=0.6 + 0.5)
        assert time.monotonic() - granted > 0.3


def taken_for_a_moment(name: str) -> bool:
    guard = locks.try_acquire(name)
    return guard is not None and guard.release()


TTL = 0.4


def take_and_release_for_ever(pipe: Any, names: list[str]) -> None:
    def work(name: str) -> None:
        while True:
            with suppress(LockError):  # SQLite may let a writer wait for longer than such a TTL
                locks.acquire(name, ttl=TTL).release()
            time.sleep(0.002)

    workers = [Actor(work, name) for name in names]
    for name in names:
        eventually(lambda name=name: locks.get(name))
    pipe.send(len(workers))
    time.sleep(60)


def test_process_killed_amid_taking_leaves_no_lease_without_an_end(shared_store: Spec, name: str) -> None:
    """B028"""
    names = [f"{name}:{number}" for number in range(4)]
    with process(shared_store, take_and_release_for_ever, names) as worker:
        assert worker.pipe.recv() == 4  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    assert all(lease is None or lease.remaining <= TTL for lease in map(locks.get, names))
    eventually(lambda: all(locks.get(name) is None for name in names), within=TTL + 1)
    for name in names:
        locks.acquire(name).release()
