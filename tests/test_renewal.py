"""Leases that are kept by renewals."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from django_locks import LeaseLost, LockNotAcquired, StoreUnavailable, conf, locks, renewal
from tests.faults import failing, patched
from tests.renewing import Batches, Losses, hold_steadily, wait_for

pytestmark = pytest.mark.usefixtures("memory_locks")


@pytest.fixture
def store(memory_locks):
    return conf.entries("default").store


# Renewal


def test_lease_is_held_far_longer_than_its_ttl():
    with locks.lock("x", ttl=0.3) as guard:
        hold_steadily(guard, 0.6)


def test_lease_is_renewed_at_a_third_of_its_ttl(store):
    moments = []
    with patched(store, "renew", lambda real, leases: moments.append(time.monotonic()) or real(leases)):
        with locks.lock("x", ttl=0.9):
            start = time.monotonic()
            wait_for(lambda: len(moments) == 3)
    assert moments[0] - start == pytest.approx(0.3, abs=0.1)
    assert moments[2] - moments[0] == pytest.approx(0.6, abs=0.15)


def test_many_leases_go_out_in_at_most_two_batches_a_period(store):
    batches = Batches()
    guards = []
    for number in range(300):
        guards.append(locks.acquire(f"x{number}", ttl=1.2))
        time.sleep(0.001)  # spread over one period
    with patched(store, "renew", batches):
        time.sleep(1.2)  # what is counted is what happens in this time
        periods = 1.2 / 0.4
    assert all(guard.release() for guard in guards)
    assert len(batches) <= 2 * (periods + 1)
    assert sum(batches) >= 300 * (periods - 1)


def test_lease_taken_while_others_are_held_is_renewed_on_time():
    with locks.lock("long", ttl=60), locks.lock("short", ttl=0.3) as guard:
        hold_steadily(guard, 0.6)


def test_dropped_guard_is_renewed_no_more():
    with pytest.warns(ResourceWarning):
        locks.acquire("x", ttl=0.4)
    start = time.monotonic()
    assert wait_for(lambda: locks.get("x") is None) - start < 0.6


def test_guard_dropped_after_a_failed_renewal_is_renewed_no_more(store):
    gc.disable()  # it must go by its reference count alone
    try:
        with failing(store, "renew"):
            guards = [locks.acquire(name, ttl=1.2) for name in "xy"]
            wait_for(lambda: all(guard._fault for guard in guards))
            with pytest.warns(ResourceWarning) as warned:
                guards.pop()
                wait_for(lambda: warned.list, 0.3)
        guards[0].release()
    finally:
        gc.enable()


def test_guard_at_the_address_of_a_dropped_one_is_renewed():
    keeper = renewal.Keeper()

    class Guard:
        due = deadline = 1e18
        window = 1.0
        in_flight = float("inf")

    first, second = Guard(), Guard()
    keeper.add(first)
    snapshot = list(keeper._guards)
    keeper.remove(first)
    keeper.add(second)
    assert len(snapshot) == len(keeper._guards) == 1
    assert keeper._held() == [second]
    keeper.remove(second)


def test_without_renewal_the_lease_ends_at_its_ttl(store):
    batches = Batches()
    with patched(store, "renew", batches):
        guard = locks.acquire("x", ttl=0.4, renew=False)
        start = time.monotonic()
        assert wait_for(lambda: guard.lost) - start == pytest.approx(0.4, abs=0.1)
    assert batches == []


def test_lease_that_max_hold_shortens_is_not_believed_in_for_longer_than_it_lasts(store):
    acquire = store.acquire

    def slow_acquire(*args):
        fence = acquire(*args)
        time.sleep(0.2)  # the answer is on its way
        return fence

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "acquire", slow_acquire)
        guard = locks.acquire("x", ttl=10, max_hold=5)
    believed, stored = guard.remaining, locks.get("x").remaining
    assert stored - 0.1 < believed <= stored + 0.01
    guard.release()


def test_max_hold_ends_the_lease_although_it_is_renewed():
    losses = Losses()
    guard = locks.acquire("x", ttl=0.3, max_hold=1.0, on_lost=losses)
    start = time.monotonic()
    hold_steadily(guard, 0.6)
    assert wait_for(lambda: locks.get("x") is None) - start == pytest.approx(1.0, abs=0.15)
    wait_for(lambda: losses)
    with pytest.raises(LeaseLost, match="as long as max_hold allows"):
        guard.check()


def test_extended_lease_has_its_new_ttl_from_then_on(store):
    guard = locks.acquire("x", ttl=0.3)
    guard.extend(30)
    assert 29 < guard.remaining <= 30
    assert 29 < locks.get("x").remaining <= 30
    guard.extend(0.4)
    hold_steadily(guard, 0.6)
    guard.release()


def test_extension_of_a_lost_lease_raises():
    guard = locks.acquire("x")
    locks.force_release("x")
    with pytest.raises(LeaseLost, match="'x'"):
        guard.extend()
    assert guard.lost


def test_extension_that_the_store_cannot_make_leaves_the_lease_as_it_was(store):
    guard = locks.acquire("x", ttl=30)
    with failing(store, "renew"), pytest.raises(StoreUnavailable):
        guard.extend(60)
    assert guard.ttl == 30
    assert guard.release() is True


def test_detached_lease_is_renewed_by_whoever_adopts_it():
    first = locks.acquire("x", ttl=0.5)
    owner = first.detach()
    assert not first.lost
    second = locks.adopt("x", owner, ttl=0.5)
    assert second.fence == first.fence
    hold_steadily(second, 1.2)
    assert first.release() is False
    assert second.release() is True


def test_detached_lease_that_nobody_adopts_ends_with_its_ttl():
    owner = locks.acquire("x", ttl=0.4).detach()
    wait_for(lambda: locks.get("x") is None, 0.8)
    with pytest.raises(LeaseLost):
        locks.adopt("x", owner)


# Waiting for what is kept


def test_others_are_refused_as_long_as_it_is_renewed():
    refusals = []

    def contend():
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            try:
                locks.acquire("x").release()
            except LockNotAcquired:
                refusals.append(1)
            time.sleep(0.02)

    with locks.lock("x", ttl=0.4):
        thread = threading.Thread(target=contend)
        thread.start()
        thread.join()
    assert len(refusals) > 20
