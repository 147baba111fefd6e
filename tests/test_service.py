from __future__ import annotations

import threading
import time
from datetime import UTC, timedelta

import pytest

from django_locks import (
    AlreadyHeld,
    LeaseLost,
    LockGuard,
    LockNotAcquired,
    LocksService,
    StoreUnavailable,
    conf,
    locks,
    signals,
)
from tests.faults import Fault, failing, forgetful, patched

pytestmark = pytest.mark.usefixtures("memory_locks")


def store():
    return conf.entries("default").store


class Elsewhere:
    """Another thread that holds a lock for a while."""

    def __init__(self, name, seconds=None, **terms):
        self.end = threading.Event()
        self.name, self.seconds, self.terms = name, seconds, terms
        self.held = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        guard = locks.acquire(self.name, **self.terms)
        self.held.set()
        self.end.wait(self.seconds)
        guard.release()

    def __enter__(self):
        self.thread.start()
        assert self.held.wait(5)
        return self

    def __exit__(self, *args):
        self.end.set()
        self.thread.join()


def test_free_lock_is_granted_with_a_guard_that_tells_of_it():
    guard = locks.try_acquire("x", ttl=20)
    assert isinstance(guard, LockGuard)
    assert (guard.name, guard.alias, guard.ttl) == ("x", "default", 20)
    assert guard.fence > 0
    assert len(guard.owner) == 32
    assert guard.holder.endswith(":MainThread")
    assert guard.acquired_at.tzinfo is UTC
    assert guard.expires_at - guard.acquired_at <= timedelta(seconds=20)
    assert 19 < guard.remaining <= 20
    assert (guard.lost, guard.released) == (False, False)
    assert guard.release() is True


def test_held_lock_is_none_to_everybody_else():
    with locks.lock("x"):
        assert locks.try_acquire("x") is None


def test_acquire_raises_with_the_holder_when_held():
    with Elsewhere("x"), pytest.raises(LockNotAcquired, match="'x'.*is held by") as caught:
        locks.acquire("x")
    assert caught.value.lease.name == "x"
    assert (caught.value.name, caught.value.alias, caught.value.waited) == ("x", "default", 0.0)
    assert not isinstance(caught.value, AlreadyHeld)


def test_wait_ends_when_the_holder_releases():
    with Elsewhere("x", seconds=0.3):
        start = time.monotonic()
        guard = locks.acquire("x", wait=5)
        assert 0.2 < time.monotonic() - start < 0.3 + 0.8
        guard.release()


def test_wait_ends_when_the_holders_lease_expires():
    with Elsewhere("x", ttl=0.4, renew=False):
        guard = locks.acquire("x", wait=5, ttl=3)
        assert guard.remaining > 2
        guard.release()


def test_wait_that_is_over_raises_and_tells_how_long_it_was():
    with Elsewhere("x"):
        start = time.monotonic()
        with pytest.raises(LockNotAcquired, match="Gave up after waiting 0.3 s") as caught:
            locks.acquire("x", wait=0.3)
        assert 0.3 <= time.monotonic() - start < 0.8
    assert 0.3 <= caught.value.waited < 0.8


@pytest.mark.parametrize("wait", [0, 0.0, timedelta(0)])
def test_wait_of_zero_tries_once(wait):
    calls = []
    with Elsewhere("x"), patched(store(), "acquire", lambda real, *args: calls.append(1) or real(*args)):
        with pytest.raises(LockNotAcquired):
            locks.acquire("x", wait=wait)
    assert calls == [1]


def test_endless_wait_is_granted_in_the_end():
    with Elsewhere("x", seconds=0.2):
        locks.acquire("x", wait=None).release()


def test_lease_that_ends_between_refusal_and_look_is_holder_unknown():
    with Elsewhere("x"), patched(store(), "get", lambda real, name: None):
        with pytest.raises(LockNotAcquired, match="holder unknown") as caught:
            locks.acquire("x")
    assert caught.value.lease is None


def test_store_that_fails_at_the_look_does_not_hide_the_refusal():
    with Elsewhere("x"), failing(store(), "get"), pytest.raises(LockNotAcquired, match="holder unknown"):
        locks.acquire("x")


@pytest.mark.parametrize("wait", [0, 5, None])
def test_lock_held_by_the_same_thread_is_refused_at_once(wait):
    with locks.lock("x"):
        start = time.monotonic()
        with pytest.raises(AlreadyHeld, match="calling thread has it"):
            locks.acquire("x", wait=wait)
        assert time.monotonic() - start < 0.5


def test_lock_released_by_the_same_thread_is_not_already_held():
    locks.acquire("x").release()
    with Elsewhere("x"), pytest.raises(LockNotAcquired) as caught:
        locks.acquire("x", wait=0.05)
    assert type(caught.value) is LockNotAcquired


def test_failing_store_is_neither_none_nor_a_guard():
    with (
        failing(store(), "acquire"),
        pytest.raises(StoreUnavailable, match="'default' could not acquire 'x'") as caught,
    ):
        locks.try_acquire("x")
    assert isinstance(caught.value.__cause__, Fault)


def test_failing_store_ends_a_wait_at_once():
    with Elsewhere("x"), failing(store(), "acquire"), pytest.raises(StoreUnavailable):
        locks.acquire("x", wait=30)


def test_grant_whose_reply_was_lost_is_given_back():
    with forgetful(store(), "acquire"), pytest.raises(StoreUnavailable):
        locks.try_acquire("x")
    assert locks.get("x") is None


def test_grant_interrupted_by_a_signal_is_given_back():
    def interrupted(real, *args):
        real(*args)
        raise KeyboardInterrupt

    with patched(store(), "acquire", interrupted), pytest.raises(KeyboardInterrupt):
        locks.try_acquire("x")
    assert locks.get("x") is None


def test_grant_that_took_longer_than_its_ttl_is_given_back():
    def slow(real, *args):
        fence = real(*args)
        time.sleep(0.3)
        return fence

    with patched(store(), "acquire", slow), pytest.raises(StoreUnavailable, match="longer TTL"):
        locks.try_acquire("x", ttl=0.2, renew=False)
    assert locks.get("x") is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": None},
        {"name": "x\n"},
        {"name": "x", "ttl": 0},
        {"name": "x", "ttl": "30"},
        {"name": "x", "at_least": -1},
        {"name": "x", "at_least": True},
        {"name": "x", "wait": -1},
        {"name": "x", "wait": "5"},
        {"name": "x", "unknown": 1},
    ],
)
@pytest.mark.parametrize("call", [locks.try_acquire, locks.acquire, locks.lock, locks.with_lock])
def test_bad_argument_is_refused_before_the_store_is_touched(arguments, call):
    if call == locks.with_lock:
        if arguments["name"] is None:
            return  # its default
        decorate, call = call, lambda **arguments: decorate(**arguments)(lambda: None)
    with patched(store(), "acquire", lambda *args: pytest.fail("touched the store")):
        with pytest.raises((ValueError, TypeError)):
            call(**arguments)


def test_lookup_and_listing_tell_who_holds():
    with locks.lock("b"), locks.lock("a") as guard:
        assert locks.get("a").fence == guard.fence
        assert [lease.name for lease in locks.leases()] == ["a", "b"]
        assert [lease.name for lease in locks.leases("b")] == ["b"]
    assert locks.get("a") is None
    assert list(locks.leases()) == []


def test_forced_release_frees_the_lock_and_the_holder_is_told():
    guard = locks.acquire("x")
    assert locks.force_release("x") is True
    assert locks.get("x") is None
    assert guard.release() is False
    assert guard.lost
    with pytest.raises(LeaseLost):
        guard.check()


def test_forced_release_with_a_fence_breaks_only_that_lease():
    first = locks.acquire("x")
    assert locks.force_release("x", fence=first.fence + 1) is False
    assert locks.force_release("x", fence=first.fence) is True
    second = locks.acquire("x")
    assert second.fence > first.fence
    assert locks.force_release("x", fence=first.fence) is False
    assert second.release() is True
    assert locks.force_release("x") is False
    assert first.release() is False


def test_at_least_keeps_the_name_taken_after_an_early_release():
    start = time.monotonic()
    with locks.lock("tick", at_least=0.5):
        pass
    assert locks.try_acquire("tick") is None
    assert locks.get("tick").owner == ""
    locks.acquire("tick", wait=5).release()
    assert time.monotonic() - start >= 0.5


def test_at_least_does_not_lengthen_a_longer_run():
    with locks.lock("tick", at_least=0.05):
        time.sleep(0.1)
    locks.acquire("tick").release()


def test_one_lock_object_serves_many_threads_each_with_a_guard_of_its_own():
    lock = locks.lock("shared", wait=None)
    fences, inside = [], []

    def run():
        with lock as guard:
            inside.append(guard)
            assert inside == [guard]
            fences.append(guard.fence)
            inside.remove(guard)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(fences)) == 8
    assert len(lock._guards) == 0


def test_lock_object_entered_again_inside_is_refused_and_still_held_outside():
    lock = locks.lock("x")
    with lock:
        with pytest.raises(AlreadyHeld):
            lock.__enter__()
        assert locks.get("x") is not None
    assert locks.get("x") is None


def test_signals_tell_of_grants_and_releases():
    heard = []

    def hear(signal, sender, alias, name, guard, **kwargs):
        heard.append((signal, alias, name, guard.fence))

    for signal in (signals.lease_acquired, signals.lease_released):
        signal.connect(hear)
    try:
        with locks.lock("x") as guard:
            pass
    finally:
        for signal in (signals.lease_acquired, signals.lease_released):
            signal.disconnect(hear)
    assert heard == [
        (signals.lease_acquired, "default", "x", guard.fence),
        (signals.lease_released, "default", "x", guard.fence),
    ]


def test_receiver_that_raises_does_not_disturb_the_holder():
    def disturb(**kwargs):
        raise RuntimeError("receiver")

    signals.lease_acquired.connect(disturb)
    try:
        with locks.lock("x"):
            pass
    finally:
        signals.lease_acquired.disconnect(disturb)


def test_service_of_an_alias_says_which():
    assert repr(locks.using("reports")) == "<LocksService 'reports'>"
    assert isinstance(locks, LocksService)


def test_paused_lock_is_granted_to_nobody_until_it_is_resumed():
    assert locks.pause("x", 60, note="deploy, ask Ada") is True
    assert locks.try_acquire("x") is None
    with pytest.raises(LockNotAcquired, match="is paused for another .*: deploy, ask Ada"):
        locks.acquire("x")
    assert locks.get("x").state == "paused"
    assert locks.pause("x", 5) is True
    assert locks.get("x").remaining <= 5
    assert locks.resume("x") is True
    assert locks.resume("x") is False
    locks.acquire("x").release()


def test_held_lock_is_not_paused_and_not_resumed():
    with locks.lock("x"):
        assert locks.pause("x", 60) is False
        assert locks.resume("x") is False
        assert locks.get("x").state == "held"


def test_lease_of_another_is_extended_by_force_only_if_it_is_the_very_one():
    with locks.lock("x", ttl=20) as guard:
        assert locks.force_extend("x", 60, fence=guard.fence + 1) is False
        assert locks.force_extend("x", 60, fence=guard.fence) is True
        assert locks.get("x").remaining > 50
    assert locks.force_extend("x", 60) is False


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda: locks.acquire("x", limit="2"), TypeError, "limit must be a whole number, not '2'"),
        (lambda: locks.acquire("x", limit=True), TypeError, "limit must be a whole number, not True"),
        (lambda: locks.acquire("x", limit=0), ValueError, "limit must be 1 to 1000, not 0"),
        (lambda: locks.acquire("x", limit=1001), ValueError, "limit must be 1 to 1000, not 1001"),
        (lambda: locks.acquire("x" * 198, limit=1000), ValueError, "limit=1000.*characters with its place"),
        (lambda: locks.lock_many("ab"), TypeError, "several names, not one text: 'ab'"),
        (lambda: locks.adopt("x", ""), TypeError, "owner must be the text"),
        (lambda: locks.adopt("x", "o" * 32, limit=2), TypeError, "adopt takes no limit"),
        (lambda: list(locks.leases(None)), TypeError, "prefix must be text, not None"),
    ],
)
def test_bad_option_is_named_before_anything_is_asked(call, error, what):
    with failing(store(), "acquire", "renew", "leases"), pytest.raises(error, match=what):
        call()


def test_block_entered_again_inside_itself_gives_back_each_of_its_guards():
    block = locks.lock("x", limit=2)
    with block as first:
        with block as second:
            assert {lease.name for lease in locks.leases()} == {first.name, second.name} == {"x#0", "x#1"}
        assert (first.released, second.released) == (False, True)
        first.check()
    assert first.released
    assert list(locks.leases()) == []
