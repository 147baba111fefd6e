"""Leases that are lost, what is told of it, and what must not end the renewals of others."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from django_locks import LeaseLost, StoreUnavailable, conf, locks, renewal, signals
from tests.faults import Fault, failing, patched
from tests.renewing import Hanging, Losses, hold_steadily, renewers, wait_for

pytestmark = pytest.mark.usefixtures("memory_locks")


@pytest.fixture
def store(memory_locks):
    return conf.entries("default").store


# Loss


def test_unreachable_store_is_a_loss_at_two_thirds_of_the_ttl(store, caplog):
    losses, told = Losses(), []

    def hear(sender, **what):
        told.append(what)

    signals.lease_lost.connect(hear)
    try:
        with failing(store, "renew"):
            start = time.monotonic()
            guard = locks.acquire("x", ttl=0.9, on_lost=losses)
            lost_at = wait_for(lambda: guard._state.value == "lost")
            wait_for(lambda: losses)
            time.sleep(0.3)
    finally:
        signals.lease_lost.disconnect(hear)
    assert lost_at - start == pytest.approx(0.6, abs=0.1)
    [(lost, moment, thread)] = losses
    assert lost is guard
    assert moment - start == pytest.approx(0.6, abs=0.2)
    assert thread is not threading.current_thread()
    [what] = told
    assert (what["alias"], what["name"], what["guard"]) == ("default", "x", guard)
    assert "unreachable" in what["reason"]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    text = record.getMessage()
    assert all(part in text for part in ("'x'", "'default'", guard.holder, "taken 0.6 s ago", "connection reset"))
    assert (record.lock, record.lock_store, record.holder, record.fence) == ("x", "default", guard.holder, guard.fence)
    assert guard.owner not in caplog.text


def test_store_that_hangs_is_a_loss_noticed_on_time(store):
    losses = Losses()
    with Hanging(store):
        start = time.monotonic()
        guard = locks.acquire("x", ttl=0.9, on_lost=losses)
        wait_for(lambda: losses)
        assert losses[0][1] - start == pytest.approx(0.6, abs=0.15)
        with pytest.raises(LeaseLost, match="not renewed in time"):
            guard.check()


def test_late_success_does_not_bring_a_lost_guard_back(store):
    with Hanging(store) as hanging:
        guard = locks.acquire("x", ttl=0.9)
        wait_for(lambda: guard.lost)
        hanging.go.set()
        wait_for(lambda: hanging.over)
        assert hanging.over[0] == {"x"}  # the store did renew it
        time.sleep(0.1)
    assert guard.lost
    assert guard.remaining == 0
    with pytest.raises(LeaseLost):
        guard.check()
    wait_for(lambda: locks.get("x") is None)


def test_loss_is_seen_by_the_flag_before_another_is_granted(store):
    guard = locks.acquire("x", ttl=1.5)
    granted = []
    with failing(store, "renew"):
        other = threading.Thread(target=lambda: granted.append((locks.acquire("x", wait=5), time.monotonic())))
        other.start()
        lost_at = wait_for(lambda: guard.lost)
        other.join()
    assert lost_at < granted[0][1]
    granted[0][0].release()


def test_errors_that_end_before_two_thirds_cost_no_lease(store, caplog):
    failures = failing(store, "renew")
    with locks.lock("x", ttl=0.9) as guard:
        with failures:
            wait_for(lambda: guard._fault)
            time.sleep(0.1)
        hold_steadily(guard, 0.9)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_refused_renewal_is_a_loss_at_once():
    losses = Losses()
    guard = locks.acquire("x", ttl=0.9, on_lost=losses)
    start = time.monotonic()
    locks.force_release("x")
    wait_for(lambda: losses)
    assert losses[0][1] - start < 0.5  # the renewal at 0.3 s, not the deadline at 0.6 s
    with pytest.raises(LeaseLost, match="freed by force"):
        guard.check()


def test_refused_renewal_names_the_successor(caplog):
    losses = Losses()
    guard = locks.acquire("x", ttl=0.45, on_lost=losses)
    locks.force_release("x")
    with locks.lock("x"):
        wait_for(lambda: losses)
    assert guard.lost
    assert "taken over" in caplog.text


def test_loss_of_one_lease_leaves_the_others_of_its_batch():
    with locks.lock("a", ttl=0.45) as kept:
        guard = locks.acquire("b", ttl=0.45)
        locks.force_release("b")
        wait_for(lambda: guard.lost)
        hold_steadily(kept, 0.6)


def test_successor_of_a_lost_lease_is_renewed_in_the_same_process(store):
    with failing(store, "renew"):
        lost = locks.acquire("x", ttl=0.5)
        wait_for(lambda: lost.lost)
        with pytest.raises(LeaseLost):
            lost.check()
    with locks.lock("x", ttl=0.5, wait=2) as guard:
        hold_steadily(guard, 0.6)
        assert lost.release() is False
    assert locks.get("x") is None


def test_renewal_refused_because_of_the_release_is_no_loss(store):
    losses = Losses()
    with Hanging(store, "release", done_before=True) as hanging:
        guard = locks.acquire("x", ttl=0.45, on_lost=losses)
        results = []
        leaving = threading.Thread(target=lambda: results.append(guard.release()))
        leaving.start()
        wait_for(lambda: locks.get("x") is None)
        time.sleep(0.5)  # renewals that are due now would be refused
        hanging.go.set()
        leaving.join()
    assert results == [True]
    assert guard.released
    assert not guard.lost
    assert losses == []


def test_renewal_on_its_way_that_comes_after_the_release_is_no_loss(store):
    losses = Losses()
    guard = locks.acquire("x", ttl=0.45, on_lost=losses)
    with Hanging(store, "renew") as renewing, Hanging(store, "release", done_before=True) as releasing:
        wait_for(lambda: guard.in_flight < float("inf"))
        results = []
        leaving = threading.Thread(target=lambda: results.append(guard.release()))
        leaving.start()
        wait_for(lambda: locks.get("x") is None)
        renewing.go.set()
        wait_for(lambda: renewing.over)
        assert renewing.over[0] == set()
        time.sleep(0.1)
        releasing.go.set()
        leaving.join()
    assert results == [True]
    assert losses == []
    assert not guard.lost


def test_release_by_two_threads_at_once_is_done_once_and_no_loss(store):
    losses, results = Losses(), []
    guard = locks.acquire("x", on_lost=losses)
    with Hanging(store, "release", lambda number: number == 1, done_before=True) as hanging:
        first = threading.Thread(target=lambda: results.append(guard.release()))
        first.start()
        wait_for(lambda: locks.get("x") is None)
        assert guard.release() is False
        hanging.go.set()
        first.join()
    assert results == [True]
    assert losses == []
    assert not guard.lost


def test_failed_release_is_followed_by_renewals_again(store):
    guard = locks.acquire("x", ttl=0.45)
    with failing(store, "release", times=1), pytest.raises(StoreUnavailable):
        guard.release()
    hold_steadily(guard, 0.6)
    assert guard.release() is True


def test_release_that_hangs_until_the_lease_is_over_and_fails_is_a_loss(store):
    losses = Losses()

    def slow(real, *args):
        time.sleep(0.5)
        raise store.unavailable("release", "x", Fault("timed out"))

    guard = locks.acquire("x", ttl=0.45, on_lost=losses)
    with patched(store, "release", slow), pytest.raises(StoreUnavailable):
        guard.release()
    assert guard.lost
    wait_for(lambda: losses)


# What must not end the renewals


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_any_error_of_a_store_is_retried(store, error):
    errors = [error]

    def wrong(real, leases):
        if errors:
            raise errors.pop()
        return real(leases)

    with patched(store, "renew", wrong), locks.lock("x", ttl=0.45) as guard:
        hold_steadily(guard, 0.6)
    assert not errors


@pytest.mark.parametrize("answer", [None, 5])
def test_nonsense_from_a_store_is_retried(store, answer):
    answers = [answer]
    with patched(store, "renew", lambda real, leases: answers.pop() if answers else real(leases)):
        with locks.lock("x", ttl=0.45) as guard:
            hold_steadily(guard, 0.6)


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1)])
def test_error_in_on_lost_ends_neither_renewals_nor_other_announcements(error):
    def wrong(guard):
        raise error

    losses = Losses()
    with locks.lock("kept", ttl=0.45) as kept:
        guards = [locks.acquire(name, ttl=0.45, on_lost=call) for name, call in (("a", wrong), ("b", losses))]
        for guard in guards:
            locks.force_release(guard.name)
        wait_for(lambda: losses)
        hold_steadily(kept, 0.5)


@pytest.mark.parametrize("error", [RuntimeError("bug"), SystemExit(1)])
def test_error_in_a_receiver_ends_neither_renewals_nor_on_lost(error):
    def wrong(**what):
        raise error

    losses = Losses()
    signals.lease_lost.connect(wrong)
    try:
        with locks.lock("kept", ttl=0.45) as kept:
            guard = locks.acquire("a", ttl=0.45, on_lost=losses)
            locks.force_release("a")
            wait_for(lambda: losses)
            hold_steadily(kept, 0.5)
    finally:
        signals.lease_lost.disconnect(wrong)
    assert guard.lost


def test_threads_that_cannot_be_started_are_started_later(monkeypatch):
    wait_for(lambda: not renewers())
    start = threading.Thread.start

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        locks.acquire("x", ttl=1.2)
    assert locks.get("x") is None
    monkeypatch.setattr(threading.Thread, "start", start)
    with locks.lock("x", ttl=1.2) as guard:
        monkeypatch.setattr(threading.Thread, "start", refused)
        time.sleep(0.5)
        monkeypatch.setattr(threading.Thread, "start", start)
        hold_steadily(guard, 1.2)


def test_announcements_go_on_after_a_thread_could_not_be_started(monkeypatch):
    losses = Losses()
    announcer = renewal._Announcer()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no more")))
        with pytest.raises(RuntimeError):
            announcer.announce(lambda: losses("first"))
    announcer.announce(lambda: losses("second"))
    wait_for(lambda: len(losses) == 2)
