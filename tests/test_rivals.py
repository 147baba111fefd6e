"""Fairness between processes that wait for the same name."""

from __future__ import annotations

import time

import pytest

from django_locks import locks
from django_locks.stores import rivals
from django_locks.stores.rivals import Rivals
from tests.crew import Spec
from tests.test_waiting import Waiting, pushing, queue_of, store, until

__all__ = ["pushing"]


def test_without_rivals_nobody_loses_time() -> None:
    fair = Rivals()
    assert fair.courtesy("x") == 0
    assert fair.lag("x", 0) == 0


def test_who_gave_the_name_back_leaves_it_to_the_others_for_a_moment() -> None:
    fair = Rivals()
    fair.note_release("x")
    assert 0 < fair.courtesy("x") <= rivals.COURTESY
    assert fair.courtesy("y") == 0
    time.sleep(rivals.COURTESY)
    assert fair.courtesy("x") == 0


def test_who_has_lost_more_often_asks_earlier() -> None:
    fair = Rivals()
    fair.note("x")
    young, old = ([fair.lag("x", lost) for _ in range(200)] for lost in (0, 9))
    assert max(young) <= rivals.SPREAD
    assert max(old) <= rivals.SPREAD / 10 < max(young)


def test_rivals_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = Rivals()
    monkeypatch.setattr(rivals, "REMEMBERED", 0.01)
    fair.note("x")
    time.sleep(0.02)
    assert fair.lag("x", 0) == 0
    for number in range(3 * rivals.MOST_NAMES):
        fair.note_release(str(number))
    assert len(fair._seen) <= rivals.MOST_NAMES
    assert len(fair._given_back) <= rivals.MOST_NAMES


def test_single_waiter_of_a_process_has_no_rivals(pushing: Spec) -> None:
    for _ in range(3):
        guard, log = locks.acquire("x"), []
        waiting = Waiting("x", log, "granted")
        until(lambda: queue_of("x") == 1 and store().waiters.is_pushed("x"))
        guard.release()
        waiting.thread.join()
        assert log == ["granted"]
    if not pushing.databases:  # PostgreSQL does not say who waits
        assert not store().waiters.rivals._seen
