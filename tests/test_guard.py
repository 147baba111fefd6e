from __future__ import annotations

import gc
import logging
import os
import pickle
import threading
import time
import weakref

import pytest
from asgiref.sync import async_to_sync

from django_locks import LeaseLost, StoreUnavailable, conf, locks
from django_locks.renewal import Keeper
from tests.faults import failing, patched

pytestmark = pytest.mark.usefixtures("memory_locks")


def store():
    return conf.entries("default").store


def wait_until_lost(guard):
    deadline = time.monotonic() + 5
    while not guard.lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_second_release_is_false_and_harmless():
    guard = locks.acquire("x")
    assert guard.release() is True
    successor = locks.acquire("x")
    assert guard.release() is False
    assert successor.release() is True


def test_guard_is_a_context_manager_that_releases():
    with locks.try_acquire("x") as guard:
        assert locks.get("x") is not None
    assert guard.released
    assert locks.get("x") is None


def test_explicit_release_in_the_block_is_no_loss():
    with locks.lock("x") as guard:
        guard.release()
    assert not guard.lost


def test_check_is_silent_while_held_and_raises_afterwards():
    with locks.lock("x") as guard:
        guard.check()
    with pytest.raises(LeaseLost, match="has been released"):
        guard.check()
    assert guard.remaining == 0


def test_body_that_outlives_its_lease_ends_in_an_error_although_it_succeeded():
    with pytest.raises(LeaseLost, match="'x'.*run out") as caught:
        with locks.lock("x", ttl=0.2, renew=False) as guard:
            wait_until_lost(guard)
            successor = locks.acquire("x", wait=1)
    assert caught.value.guard is guard
    assert successor.release() is True


def test_body_that_failed_after_a_loss_keeps_its_error_with_a_note():
    with pytest.raises(KeyError) as caught:
        with locks.lock("x", ttl=0.2, renew=False) as guard:
            wait_until_lost(guard)
            raise KeyError("body")
    assert any("'x'" in note and "run out" in note for note in caught.value.__notes__)


def test_body_that_ends_by_its_own_check_raises_that_error_alone():
    with pytest.raises(LeaseLost) as caught:
        with locks.lock("x", ttl=0.2, renew=False) as guard:
            wait_until_lost(guard)
            guard.check()
    assert not hasattr(caught.value, "__notes__")


def test_loss_noticed_only_at_the_release_is_reported_too():
    with pytest.raises(LeaseLost, match="'x'.*(not ours any more|freed by force)"):  # the latter once it has looked
        with locks.lock("x"):
            locks.force_release("x")


def test_failing_body_releases_and_keeps_its_error():
    with pytest.raises(ValueError, match="body"):
        with locks.lock("x"):
            raise ValueError("body")
    assert locks.get("x") is None


def test_release_of_an_unreachable_store_raises_and_may_be_called_again():
    guard = locks.acquire("x")
    with failing(store(), "release", times=1):
        with pytest.raises(StoreUnavailable):
            guard.release()
        assert not guard.released
        assert not guard.lost
        assert guard.release() is True
    assert locks.get("x") is None


def test_leaving_with_an_unreachable_store_keeps_the_bodys_error_and_warns(caplog):
    with pytest.raises(ValueError, match="body"):
        with failing(store(), "release"), locks.lock("x", ttl=0.5) as guard:
            raise ValueError("body")
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "'x'" in record.getMessage()
    assert guard.owner not in record.getMessage()
    assert not guard.released
    guard.release()


def test_leaving_with_an_unreachable_store_after_a_good_body_only_warns(caplog):
    with failing(store(), "release"), locks.lock("x", ttl=0.5) as guard:
        pass
    assert "could not be released" in caplog.text
    guard.release()


def test_guard_dropped_without_release_warns_and_does_not_release():
    with pytest.warns(ResourceWarning, match="'x'.*without a release"):
        locks.acquire("x", ttl=30)
        gc.collect()
    assert locks.get("x") is not None


def test_guard_dropped_after_its_end_is_silent():
    locks.acquire("x").release()
    guard = locks.acquire("x", ttl=0.05, renew=False)
    wait_until_lost(guard)
    del guard
    gc.collect()


def test_any_thread_may_release():
    guard = locks.acquire("x")
    results = []
    thread = threading.Thread(target=lambda: results.append(guard.release()))
    thread.start()
    thread.join()
    assert results == [True]
    assert guard.released


def test_repr_shows_state_and_no_secret():
    guard = locks.acquire("x")
    assert "'x'" in repr(guard)
    assert "remaining" in repr(guard)
    assert guard.owner not in repr(guard)
    guard.release()
    assert "released" in repr(guard)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_child_does_not_own_its_parents_guard():
    guard = locks.acquire("x")
    child = os.fork()
    if child == 0:
        fine = guard.lost and guard.remaining == 0 and guard.release() is False and locks.try_acquire("x") is not None
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not guard.lost
    assert guard.release() is True


@pytest.mark.django_db
def test_loss_that_no_other_thread_could_explain_is_asked_about_by_none(settings, monkeypatch):
    """In a TestCase, or in memory, another connection sees nothing, and stands in the way of the test's own."""
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore"}}
    askers, told = [], threading.Event()
    look_up = type(store()).get
    monkeypatch.setattr(
        type(store()), "get", lambda self, name: (askers.append(threading.current_thread()), look_up(self, name))[1]
    )
    guard = locks.acquire("x", on_lost=lambda guard: told.set())
    locks.force_release("x")
    guard.refused()
    assert told.wait(5)
    assert set(askers) == {threading.current_thread()}


def test_guard_that_another_thread_gives_back_meanwhile_is_not_detached(monkeypatch):
    guard = locks.acquire("x")
    monkeypatch.setattr(type(guard), "check", lambda self: self.release())
    with pytest.raises(LeaseLost, match="has been released"):
        guard.detach()


def test_loss_of_a_lease_whose_store_cannot_be_asked_is_told_without_the_new_holder(caplog):
    told = threading.Event()
    guard = locks.acquire("x", on_lost=lambda guard: told.set())
    locks.force_release("x")
    with failing(store(), "get"):
        guard.refused()
        assert told.wait(5)
    assert "is not ours any more: somebody took it over, or freed it by force" in caplog.text


def test_extension_while_a_renewal_is_on_its_way_counts_the_shorter_and_renews_again():
    asked, answered = threading.Event(), threading.Event()

    def slow_once(original, leases):
        if not asked.is_set():
            asked.set()
            answered.wait(5)
        return original(leases)

    with patched(store(), "renew", slow_once), locks.lock("x", ttl=0.6) as guard:
        assert asked.wait(5)
        guard.extend(30)
        assert guard.remaining < 1, "the renewal may have come last"
        answered.set()
        deadline = time.monotonic() + 5
        while guard.remaining < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.django_db
def test_lease_that_only_its_test_sees_is_extended_although_its_time_is_over(settings):
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore"}}

    async def aextend():
        await guard.aextend()

    for extend in (lambda: guard.extend(), lambda: async_to_sync(aextend)()):
        with locks.lock("x", ttl=0.1) as guard:
            time.sleep(0.15)
            assert locks.get("x") is None
            extend()
            assert locks.get("x").fence >= guard.fence


def test_loss_that_travels_to_another_process_goes_without_its_guard():
    with pytest.raises(LeaseLost) as caught, locks.lock("x"):
        locks.force_release("x")
    loss = pickle.loads(pickle.dumps(caught.value))
    assert (type(loss), str(loss), loss.name, loss.guard) == (LeaseLost, str(caught.value), "x", None)


class Unreleasable:
    """As the keeper sees a guard."""

    def __init__(self, error=None):
        self.error, self.released = error, False

    def release(self):
        if self.error is not None:
            raise self.error
        self.released = True


def test_release_that_fails_at_exit_is_told_and_holds_up_no_other(caplog):
    keeper, guards = Keeper(), [Unreleasable(), Unreleasable(OSError("no route to the store")), Unreleasable()]
    keeper._guards.update(map(weakref.ref, guards))
    keeper._release_all()
    assert [guard.released for guard in guards] == [True, False, True]
    assert "could not be released at exit: no route to the store" in caplog.text


def test_release_that_an_outage_has_delayed_beyond_the_lease_is_false():
    with failing(store(), "release"), locks.lock("x", ttl=0.2) as guard:
        pass
    deadline = time.monotonic() + 5
    while locks.get("x") is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert guard.release() is False
    assert guard.release() is False
    assert not guard.released
