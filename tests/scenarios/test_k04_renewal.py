"""K04: the renewer keeps stale state after a failure, or its interval leaves no slack below the TTL."""

from __future__ import annotations

import logging
import time
from itertools import count
from typing import Any

import pytest
from django.core.checks import run_checks

from django_locks import StoreUnavailable, locks
from tests.crew import Spec
from tests.faults import failing, patched
from tests.scenarios.actors import Actor, eventually, store


def refused_for(name: str, seconds: float) -> int:
    """Try all the time, and return how often it was refused; fail if it was not."""
    end, tries = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        assert locks.try_acquire(name) is None
        tries += 1
        time.sleep(0.05)
    return tries


def test_lease_after_a_failed_one_of_the_same_name_is_renewed(any_store: Spec, name: str) -> None:
    """B014"""
    lost = locks.acquire(name, ttl=0.9)
    with failing(store(), "renew", "release"):
        with pytest.raises(StoreUnavailable):
            lost.release()
        eventually(lambda: lost.lost, within=2)
    assert lost.release() is False
    guard = locks.acquire(name, ttl=0.9, wait=5)
    rival = Actor(refused_for, name, 2.7)
    assert rival.result() > 10
    guard.check()
    assert guard.release() is True
    assert locks.get(name) is None


def test_one_late_renewal_costs_no_lease_and_is_told_once(
    any_store: Spec, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B015"""
    calls = count()

    def late_once(renew: Any, leases: Any) -> Any:
        if next(calls) == 1:
            time.sleep(0.4)
        return renew(leases)

    with patched(store(), "renew", late_once), locks.lock(name, ttl=0.9) as guard:
        rival = Actor(refused_for, name, 3.0)
        assert rival.result() > 10
        guard.check()
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in warnings] == [
        "The lock store 'default' is slow to renew: trying another connection"
    ]


@pytest.mark.parametrize("key", ["RENEW_INTERVAL", "RENEW_EVERY", "INTERVAL"])
def test_interval_cannot_be_set_to_more_than_the_ttl_or_at_all(key: str, settings: Any, memory_locks: None) -> None:
    """B015: it is a third of the TTL; nobody can choose a bad pair."""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "TTL": 5, key: 30}}
    (message,) = run_checks(tags=["django_locks"])
    assert message.id == "django_locks.E001"
    assert repr(key) in message.msg
