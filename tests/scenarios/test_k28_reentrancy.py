"""K28: nested use, repeated release, and leases that travel."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_locks import AlreadyHeld, LeaseLost, LocksService, locks, with_lock
from tests.crew import Spec, process
from tests.scenarios.actors import Actor, elsewhere, store


@pytest.mark.usefixtures("any_store")
def test_lock_entered_again_inside_is_refused_and_still_held_outside(name: str) -> None:
    """B111"""
    lock = locks.lock(name, wait=30)
    start = time.monotonic()
    with lock:
        with pytest.raises(AlreadyHeld), lock:
            raise AssertionError("entered")
        assert elsewhere(locks.try_acquire, name) is None
    assert time.monotonic() - start < 3
    elsewhere(lambda: locks.acquire(name).release())


@pytest.mark.usefixtures("any_store")
def test_who_would_wait_for_himself_is_told_at_once(name: str) -> None:
    """B112"""

    @with_lock(name, wait=None, on_busy="raise")
    def recursive(depth: int) -> None:
        if depth:
            recursive(depth - 1)

    @with_lock(name, wait=None, on_busy="raise")
    def g() -> None:
        raise AssertionError("ran")

    @with_lock(name, wait=None, on_busy="raise")
    def f() -> None:
        g()

    def nested() -> None:
        with locks.lock(name, wait=None), locks.lock(name, wait=None):
            raise AssertionError("entered")

    for call in (lambda: recursive(3), f, nested):
        actor = Actor(call)
        with pytest.raises(AlreadyHeld, match="wait for itself"):
            actor.result(within=5)
    assert locks.get(name) is None


@pytest.mark.usefixtures("any_store")
def test_guard_works_in_any_thread_and_a_stranger_has_no_say(name: str) -> None:
    """B114"""

    def renew_and_release() -> bool:
        try:
            guard.extend(40)
            return guard.release()
        finally:
            store().leave_thread()

    guard = locks.acquire(name, ttl=20)
    with pytest.raises(LeaseLost, match="not that owner's"):
        locks.adopt(name, "f" * 32)
    assert store().release(name, "f" * 32) is False
    assert locks.get(name).owner == guard.owner
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(renew_and_release).result() is True
    assert (guard.released, locks.get(name)) == (True, None)
    assert guard.release() is False


def adopt(pipe: Any, name: str, owner: str) -> None:
    with locks.adopt(name, owner, ttl=30) as guard:
        pipe.send((guard.fence, guard.owner == owner))
        pipe.recv()
    pipe.send(guard.released)


def test_lease_is_handed_on_to_another_process(shared_store: Spec, second: LocksService, name: str) -> None:
    """B114"""
    guard = locks.acquire(name, ttl=20)
    with process(shared_store, adopt, name, guard.detach()) as heir:
        assert heir.pipe.recv() == (guard.fence, True)  # type: ignore[attr-defined]
        assert second.try_acquire(name) is None
        assert guard.release() is False
        assert second.get(name).remaining > 20
        heir.pipe.send("end")  # type: ignore[attr-defined]
        assert heir.pipe.recv() is True  # type: ignore[attr-defined]
    second.acquire(name).release()
