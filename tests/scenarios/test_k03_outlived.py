"""K03: the work outlives its lease, and nobody is told."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from django_locks import LeaseLost, LocksService, StoreUnavailable, locks
from tests.faults import patched
from tests.scenarios.actors import Actor, eventually, store


@pytest.mark.usefixtures("any_store")
def test_body_that_outlives_its_lease_ends_in_a_loss_and_the_successor_keeps_its_own(name: str) -> None:
    """B011"""
    with pytest.raises(LeaseLost) as caught, locks.lock(name, ttl=0.3, renew=False):
        b = eventually(lambda: locks.try_acquire(name))
    assert not isinstance(caught.value, StoreUnavailable)
    assert caught.value.guard.fence < b.fence
    assert locks.get(name).owner == b.owner
    assert b.release() is True


@pytest.mark.parametrize("outage", ["fails", "hangs"])
@pytest.mark.usefixtures("shared_store")
def test_holder_that_is_cut_off_knows_it_before_the_next_one_is_granted(
    outage: str, second: LocksService, name: str
) -> None:
    """B012"""
    cut_off = threading.Event()

    def renew(real: Any, claims: Any) -> Any:
        if outage == "hangs":
            cut_off.wait(10)
        raise store().unavailable("renew", name, "cut off")

    def first_seen_lost() -> float:
        while not a.lost:
            time.sleep(0.005)
        return time.monotonic()

    def granted() -> Any:
        b = second.acquire(name, wait=5)
        return b, time.monotonic()

    with patched(store(), "renew", renew):
        a = locks.acquire(name, ttl=0.6)
        watcher, taker = Actor(first_seen_lost), Actor(granted)
        b, at = taker.result()
        assert watcher.result() <= at
        cut_off.set()
        b.release()
