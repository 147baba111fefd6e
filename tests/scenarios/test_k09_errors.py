"""K09: one error hides another, or a failed release leaves a state from which nobody recovers."""

from __future__ import annotations

import logging

import pytest

from django_locks import LocksService, StoreUnavailable, locks
from tests.faults import failing
from tests.scenarios.actors import store


@pytest.mark.usefixtures("any_store")
def test_error_of_the_body_is_not_hidden_by_that_of_the_release(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """B034"""
    with pytest.raises(ValueError, match="body"), failing(store(), "release"), locks.lock(name, ttl=5) as guard:
        raise ValueError("body")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert name in caplog.text
    assert "connection reset" in caplog.text
    assert caplog.records[0].holder == guard.holder
    assert guard.released is False


@pytest.mark.usefixtures("any_store")
def test_failed_body_frees_the_lock_at_once(name: str) -> None:
    """B034"""
    with pytest.raises(ValueError, match="body"), locks.lock(name):
        raise ValueError("body")
    assert locks.get(name) is None


@pytest.mark.usefixtures("any_store")
def test_failed_release_after_a_good_body_is_logged_and_no_release(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """B034"""
    with failing(store(), "release"), locks.lock(name, ttl=5) as guard:
        pass
    assert name in caplog.text
    assert guard.released is False
    assert locks.get(name).owner == guard.owner
    assert guard.release() is True


@pytest.mark.usefixtures("shared_store")
def test_release_that_failed_may_be_called_again(second: LocksService, name: str) -> None:
    """B036"""
    guard = locks.acquire(name, ttl=60)
    with failing(store(), "release", times=1):
        with pytest.raises(StoreUnavailable):
            guard.release()
        assert (guard.released, guard.lost) == (False, False)
        guard.check()
        assert guard.release() is True
    second.acquire(name).release()
