"""K06: the wait is ignored or misread, the loop stops early or spins."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from django_locks import LockNotAcquired, clock, locks
from django_locks.values import LONGEST, new_owner
from tests.crew import Spec, process
from tests.faults import patched
from tests.scenarios.actors import LONG, Actor, held_elsewhere, store


@pytest.mark.usefixtures("any_store")
def test_wait_of_zero_is_one_try(name: str) -> None:
    """B020"""
    with held_elsewhere(name):
        for wait in (0, 0.0):
            start = time.monotonic()
            with pytest.raises(LockNotAcquired):
                locks.acquire(name, wait=wait)
            assert time.monotonic() - start < 0.5
        start = time.monotonic()
        assert locks.try_acquire(name) is None
        assert time.monotonic() - start < 0.5


@pytest.mark.usefixtures("any_store")
def test_lock_that_comes_free_early_is_granted_early(name: str) -> None:
    """B022"""
    with held_elsewhere(name, seconds=0.3):
        start = time.monotonic()
        locks.acquire(name, wait=2).release()
        assert 0.2 < time.monotonic() - start < 0.3 + 0.6


def wait_and_count(pipe: Any, name: str, wait: float | None) -> None:
    calls: list[float] = []
    with patched(store(), "acquire", lambda real, *args: calls.append(time.monotonic()) or real(*args)):
        pipe.send("waits")
        try:
            locks.acquire(name, wait=wait)
        except KeyboardInterrupt:
            pipe.send((calls, time.monotonic()))


@pytest.mark.parametrize("wait", [None, LONGEST] if LONG else [None])
def test_endless_wait_neither_spins_nor_overflows_and_can_be_interrupted(
    shared_store: Spec, name: str, wait: float | None
) -> None:
    """B023"""
    with locks.lock(name), process(shared_store, wait_and_count, name, wait) as waiter:
        assert waiter.pipe.recv() == "waits"  # type: ignore[attr-defined]
        time.sleep(1.5)
        os.kill(waiter.pid, signal.SIGINT)
        interrupted = time.monotonic()
        calls, ended = waiter.pipe.recv()  # type: ignore[attr-defined]
    assert ended - interrupted < 1
    # The pauses grow from 5 ms to 250 ms: some eight tries in the first second, four in each later one.
    assert len([call for call in calls if call >= calls[0] + 0.5]) <= 15
    assert len(calls) <= 30


def test_wait_longer_than_ten_years_is_a_value_error(name: str, memory_locks: None) -> None:
    """B023"""
    with pytest.raises(ValueError, match="ten years"):
        locks.acquire(name, wait=10**10)


def test_clock_that_runs_on_by_months_makes_no_busy_loop(
    name: str, memory_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B023"""
    ahead, calls, real_now = [0.0], [], clock.now
    owner = new_owner()
    monkeypatch.setattr(clock, "now", lambda: real_now() + ahead[0])
    store().acquire(name, owner, LONGEST, "somebody")
    with patched(store(), "acquire", lambda real, *args: calls.append(1) or real(*args)):
        waiter = Actor(lambda: locks.acquire(name, wait=LONGEST).release())
        for _ in range(10):
            time.sleep(0.1)
            ahead[0] += 30 * 24 * 3600
        assert waiter.is_alive()
        assert len(calls) <= 30
        store().release(name, owner)
        waiter.result(within=3)
