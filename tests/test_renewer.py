"""The threads that renew: while a connection hangs, in number, and over forks."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time

import pytest

from django_locks import LeaseLost, conf, locks, renewal
from tests.faults import Fault, patched
from tests.renewing import Hanging, Losses, hold_steadily, in_child, renewers, wait_for

LONG = os.environ.get("LONG") == "1"


pytestmark = pytest.mark.usefixtures("memory_locks")


@pytest.fixture
def store(memory_locks):
    return conf.entries("default").store


# A hanging connection


def test_one_hanging_connection_costs_no_lease(store):
    with Hanging(store, which=lambda number: number == 1), locks.lock("x", ttl=0.9) as guard:
        hold_steadily(guard, 1)


def test_failure_of_a_hanging_call_is_nothing_once_another_has_renewed(store, caplog):
    def first_fails_late(real, leases, calls=itertools.count(1)):  # noqa: B008
        if next(calls) == 1:
            time.sleep(0.5)
            raise store.unavailable("renew", "", Fault("timed out"))
        return real(leases)

    with patched(store, "renew", first_fails_late), locks.lock("x", ttl=0.9) as guard:
        hold_steadily(guard, 1.2)
    assert "could not be renewed" not in caplog.text
    assert "trying another connection" in caplog.text


def test_two_hanging_connections_do_not_spin(store, monkeypatch):
    looks = itertools.count()
    look = renewal.keeper._look_at_all
    with locks.lock("other", ttl=60), Hanging(store):
        early = locks.acquire("early", ttl=0.45)
        wait_for(lambda: early.lost)  # by now its renewal hangs, and so does the second try
        late = locks.acquire("late", ttl=1.8)
        monkeypatch.setattr(renewal.keeper, "_look_at_all", lambda now: next(looks) < 0 or look(now))
        wait_for(lambda: late.lost)
    assert next(looks) < 50


def test_workers_that_hang_for_ever_are_replaced(store, monkeypatch):
    monkeypatch.setattr(renewal, "HOPELESS", 1.0)
    with locks.lock("other", ttl=60):  # so that the store always has a lease to care for
        with Hanging(store, which=lambda number: number <= 2):
            lost = locks.acquire("x", ttl=0.9)
            wait_for(lambda: lost.lost)
            wait_for(lambda: locks.get("x") is None)
            time.sleep(0.5)
            with locks.lock("x", ttl=0.9) as guard:
                hold_steadily(guard, 0.6)


def test_threads_go_on_after_a_hang(store):
    with Hanging(store) as hanging:
        lost = locks.acquire("x", ttl=0.45)
        wait_for(lambda: lost.lost)
        hanging.go.set()
        with locks.lock("x", ttl=0.45, wait=3) as guard:
            hold_steadily(guard, 0.6)


# Threads


def test_threads_end_when_idle_and_start_again():
    for _ in range(2):
        with locks.lock("x", ttl=0.3) as guard:
            hold_steadily(guard, 0.5)
            assert {thread.name for thread in renewers()} >= {"django_locks timer", "django_locks renewer default"}
        start = time.monotonic()
        assert wait_for(lambda: not renewers()) - start < 3


def test_release_does_not_wait_for_the_renewer():
    threads = threading.active_count()
    start = time.monotonic()
    for _ in range(100):
        with locks.lock("x", ttl=30):
            pass
    assert time.monotonic() - start < 2
    assert threading.active_count() <= threads + 2


def test_thousand_guards_are_kept_by_three_threads_at_most():
    threads = threading.active_count()
    guards = [locks.acquire(f"x{number}", ttl=3) for number in range(1000)]
    time.sleep(2.2)
    assert threading.active_count() <= threads + 3
    assert not any(guard.lost for guard in guards)
    assert all(guard.release() for guard in guards)


def test_guards_taken_and_released_by_many_threads_are_all_kept():
    failures = []

    def work(number):
        chance = random.Random(number)
        for turn in range(25):
            try:
                with locks.lock(f"x{number}-{turn}", ttl=0.9):
                    time.sleep(chance.choice([0, 0.001, 0.05]))
            except BaseException as error:
                failures.append(error)

    with locks.lock("long", ttl=0.9) as guard:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        guard.check()
    assert failures == []


def renews_in_child():
    with locks.lock("child", ttl=0.4) as guard:
        hold_steadily(guard, 0.6)
    return locks.get("child") is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_is_inert_and_has_renewals_of_its_own():
    losses = Losses()
    with locks.lock("x", ttl=0.45, on_lost=losses) as guard:

        def child():
            with pytest.raises(LeaseLost, match="fork"):
                guard.check()
            return guard.lost and guard.release() is False and renews_in_child() and not losses

        assert in_child(child)
        hold_steadily(guard, 0.6)
    assert losses == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_body_that_goes_on_in_a_forked_child_ends_in_a_loss():
    def child():
        guard.__exit__(None, None, None)

    with locks.lock("x") as guard:

        def ends_in_loss():
            with pytest.raises(LeaseLost, match="fork"):
                child()
            return True

        assert in_child(ends_in_loss)
        guard.check()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forks_at_random_moments_leave_no_child_that_hangs(store):
    chance = random.Random(1)
    stop = threading.Event()

    def churn(number):
        while not stop.is_set():
            with locks.lock(f"churn{number}", ttl=0.6):
                time.sleep(0.001)

    def child():
        with locks.lock("child", ttl=0.6) as guard:
            hold_steadily(guard, 0.3)
        return True

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(2)]
    with locks.lock("x", ttl=0.6) as guard:
        for thread in threads:
            thread.start()
        for _ in range(20 if LONG else 8):
            time.sleep(chance.random() * 0.02)
            assert in_child(child, 5)
            guard.check()
        stop.set()
        for thread in threads:
            thread.join()
