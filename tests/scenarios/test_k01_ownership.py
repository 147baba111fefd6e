"""K01: one actor changes another's lease, since ownership is not checked, or remembered in the wrong place."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from django_locks import LockGuard, LockNotAcquired, LocksService, locks
from tests.crew import Spec, process
from tests.faults import patched
from tests.scenarios.actors import elsewhere, eventually, store


@pytest.mark.usefixtures("any_store")
def test_late_release_leaves_the_successor_alone(name: str) -> None:
    """B001"""
    a = locks.acquire(name, ttl=0.4, renew=False)
    b = eventually(lambda: locks.try_acquire(name, ttl=30))
    assert a.release() is False
    assert store().release(name, a.owner) is False  # had A not noticed the end of its lease by itself
    assert locks.try_acquire(name) is None
    assert locks.get(name).owner == b.owner
    assert b.release() is True


def test_late_renewal_does_not_touch_the_successor(shared_store: Spec, second: LocksService, name: str) -> None:
    """B003"""
    link, sent = threading.Event(), []

    def block(real: Any, claims: Any) -> Any:
        sent.append(claims)
        assert link.wait(10)
        return real(claims)

    with patched(store(), "renew", block):
        a = locks.acquire(name, ttl=0.9)
        b = eventually(lambda: second.try_acquire(name, ttl=5, renew=False))
        taken = time.monotonic()
        held_back = len(sent)
        assert held_back > 0
        link.set()
        eventually(lambda: a.lost)
        time.sleep(0.5)  # more than a renewal interval
        assert len(sent) == held_back, "a lost lease was renewed again"
    lease = second.get(name)
    assert lease.owner == b.owner
    left = 5 - (time.monotonic() - taken)
    assert left - 0.5 < lease.remaining <= left + 0.1, "A's renewal moved the end of B's lease"
    assert b.release() is True


@pytest.mark.usefixtures("any_store")
def test_who_wants_several_touches_only_what_was_granted(name: str) -> None:
    """B004"""
    q1, q2 = f"{name}:q1", f"{name}:q2"
    a = locks.acquire(q1, ttl=2, renew=False)
    end = time.monotonic() + 2
    with pytest.raises(LockNotAcquired), locks.lock_many([q2, q1]):
        raise AssertionError("one of them is taken")
    assert elsewhere(locks.try_acquire, q1) is None
    b = locks.acquire(q2, ttl=30)
    b.extend()
    assert store().renew([(q1, b.owner, 30), (q2, b.owner, 30)]) == {q2}
    b.release()
    lease = locks.get(q1)
    assert lease.owner == a.owner
    assert lease.remaining <= end - time.monotonic() + 0.1
    a.detach()  # dies
    eventually(lambda: locks.get(q1) is None, within=2.5)


held_to_the_end: list[LockGuard] = []


def take_what_is_free(pipe: Any, names: list[str]) -> None:
    held_to_the_end.extend(guard for name in names if (guard := locks.try_acquire(name, ttl=20)))
    pipe.send([guard.name for guard in held_to_the_end])
    pipe.recv()  # and its shutdown gives back what it has


def test_process_that_ends_gives_back_its_own_and_nothing_else(shared_store: Spec, name: str) -> None:
    """B004"""
    with locks.lock(f"{name}:q1") as a:
        with process(shared_store, take_what_is_free, [f"{name}:q1", f"{name}:q2"]) as b:
            assert b.pipe.recv() == [f"{name}:q2"]  # type: ignore[attr-defined]
            b.pipe.send("end")  # type: ignore[attr-defined]
            b.join(10)
        assert locks.get(f"{name}:q2") is None
        assert locks.get(f"{name}:q1").owner == a.owner
