"""K17: hosts whose clocks differ, clocks that jump, pauses."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_locks import LockNotAcquired, LocksService, StoreUnavailable, clock, locks
from tests.faults import patched
from tests.scenarios.actors import Actor, eventually, held_elsewhere, store

real_time, real_wall = time.time, clock.wall


def set_wall_clock(monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    monkeypatch.setattr(time, "time", lambda: real_time() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: int((real_time() + ahead) * 1e9))
    monkeypatch.setattr(clock, "wall", lambda: real_wall() + ahead)


@pytest.mark.usefixtures("shared_store")
def test_host_whose_clock_is_ahead_is_refused_like_others(
    second: LocksService, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B067"""
    with locks.lock(name, ttl=120):
        set_wall_clock(monkeypatch, 180)
        assert second.try_acquire(name) is None
        assert 110 < second.get(name).remaining <= 120


@pytest.mark.usefixtures("shared_store")
def test_lease_of_a_host_whose_clock_is_ahead_ends_with_its_ttl(
    second: LocksService, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B067"""
    with monkeypatch.context() as ahead:
        set_wall_clock(ahead, 180)
        start = time.monotonic()
        locks.acquire(name, ttl=0.5).detach()
    eventually(lambda: second.try_acquire(name), within=0.5 + 1).release()
    assert time.monotonic() - start >= 0.5


@pytest.mark.parametrize("step", [-3600, 3600, None])
@pytest.mark.usefixtures("any_store")
def test_wait_does_not_mind_steps_of_the_wall_clock(
    step: float | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B068"""

    def give_up() -> float:
        start = clock.now()
        with pytest.raises(LockNotAcquired):
            locks.acquire(name, wait=0.5)
        return clock.now() - start

    with held_elsewhere(name, ttl=20):
        waiter = Actor(give_up)
        time.sleep(0.1)
        with monkeypatch.context() as patch:
            if step is None:  # as a library stops it
                patch.setattr(time, "time", lambda: 1e9)
                patch.setattr(time, "monotonic", lambda: 1e3)
            else:
                set_wall_clock(patch, step)
            took = waiter.result()
            assert 15 < locks.get(name).remaining <= 20
        assert 0.5 <= took < 0.5 + 0.3


@pytest.mark.usefixtures("any_store")
def test_grant_that_was_on_its_way_for_longer_than_its_ttl_is_given_back(name: str) -> None:
    """B071"""

    def pause(real: Any, *args: Any) -> Any:
        time.sleep(0.8)
        return real(*args)

    def take() -> Any:
        try:
            return locks.try_acquire(name, ttl=0.5)
        except StoreUnavailable as error:
            return str(error)

    with patched(store(), "acquire", pause):
        results = [actor.result() for actor in (Actor(take), Actor(take))]
    too_late = [result for result in results if result is not None]
    assert too_late, "the first to be asked was refused"
    assert all("too late for the TTL of 0.5 s" in result for result in too_late)
    assert locks.get(name) is None
