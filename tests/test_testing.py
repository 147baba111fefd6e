from __future__ import annotations

import asyncio
import time

import pytest
from django.test import SimpleTestCase

from django_locks import SKIPPED, LeaseLost, StoreUnavailable, conf, locks, with_lock
from django_locks.signals import lease_lost
from django_locks.testing import (
    assert_locked,
    assert_unlocked,
    hold,
    lose,
    movable_clock,
    override_locks,
    unavailable,
)

pytest_plugins = ["pytester"]


@with_lock("report")
def report() -> str:
    return "done"


def test_overridden_locks_are_in_memory_and_of_one_test_alone(settings):
    settings.LOCKS = {
        "default": {"BACKEND": "nowhere.Store", "KEY_PREFIX": "shop"},
        "reports": {"BACKEND": "nowhere.S"},
    }
    with override_locks(TTL=5):
        guard = locks.acquire("x")
        assert guard.ttl == 5
        assert conf.entries("default").prefix == "shop:"
        locks.using("reports").acquire("x").release()
        with override_locks():
            assert locks.get("x") is None
        assert_locked("x")
        guard.release()


@override_locks()
def test_override_decorates_functions():
    assert type(conf.entries("default").store).__name__ == "MemoryStore"


@override_locks()
class OverrideTests(SimpleTestCase):
    def test_override_decorates_test_cases(self):
        self.assertEqual(type(conf.entries("default").store).__name__, "MemoryStore")


def test_held_lock_is_somebody_elses(memory_locks):
    with hold("report", by="web-7") as lease:
        assert lease.holder == "web-7"
        assert report() is SKIPPED
        with pytest.raises(AssertionError, match="held already"), hold("report"):
            pass
    assert report() == "done"


def test_lost_guard_knows_and_its_callbacks_have_been_called(memory_locks):
    called = []
    guard = locks.acquire("x", on_lost=lambda guard: called.append("on_lost"))

    def heard(**kwargs):
        if kwargs["guard"] is guard:  # an earlier test's may get lost meanwhile
            called.append("signal")

    lease_lost.connect(heard)
    lose(guard)
    lease_lost.disconnect(heard)
    assert guard.lost
    assert sorted(called) == ["on_lost", "signal"]
    with pytest.raises(LeaseLost):
        guard.check()
    assert_unlocked("x")


def test_unavailable_store_raises_for_both_sides(memory_locks):
    with unavailable():
        with pytest.raises(StoreUnavailable, match="testing"):
            locks.try_acquire("x")
        with pytest.raises(StoreUnavailable):
            asyncio.run(locks.atry_acquire("x"))
        with pytest.raises(StoreUnavailable):
            locks.get("x")
        with pytest.raises(StoreUnavailable):
            report()
    assert report() == "done"


def test_assertions_tell_what_is_held(memory_locks):
    assert_unlocked("x")
    with pytest.raises(AssertionError, match="'x'.*is free. Held: none"):
        assert_locked("x")
    with locks.lock("x") as guard:
        assert assert_locked("x").fence == guard.fence
        with pytest.raises(AssertionError, match="'x'.*is held by"):
            assert_unlocked("x")


def test_moved_clock_ends_leases_without_waiting(memory_locks):
    with movable_clock() as clock:
        guard = locks.acquire("x", ttl=600, renew=False)
        clock.advance(599)
        assert not guard.lost
        assert 0 < guard.remaining < 1.01
        assert_locked("x")
        clock.advance(2)
        assert guard.lost
        assert_unlocked("x")


def test_moved_clock_makes_renewals_due(memory_locks):
    with movable_clock() as clock, locks.lock("x", ttl=600) as guard:
        clock.advance(250)
        deadline = time.monotonic() + 5
        while guard.remaining < 500:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not guard.lost


def test_plugin_gives_the_fixture_to_other_projects(pytester):
    pytester.makepyfile(
        """
        from django.conf import settings
        settings.configure(LOCKS={"default": {"BACKEND": "nowhere.Store"}})

        def test_with_fixture(memory_locks):
            from django_locks import locks
            with locks.lock("x"):
                assert locks.try_acquire("x") is None
        """
    )
    pytester.runpytest_subprocess("-p", "no:django", "-p", "no:randomly").assert_outcomes(passed=1)
