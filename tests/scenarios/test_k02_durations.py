"""K02: durations travel between seconds, milliseconds, floats and dates without being looked at."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from django.core.checks import run_checks

from django_locks import InvalidLockStore, locks
from django_locks.values import LONGEST
from tests.faults import patched
from tests.scenarios.actors import eventually, store

NO_DURATIONS = [0, -5, "2280s", "30", math.nan, math.inf, True]


@pytest.mark.usefixtures("any_store")
def test_fraction_of_a_second_is_granted_and_kept(name: str) -> None:
    """B006"""
    start = time.monotonic()
    a = locks.acquire(name, ttl=1.2345, renew=False)
    assert 1.0 < locks.get(name).remaining <= 1.24
    time.sleep(0.5)
    assert locks.try_acquire(name) is None
    eventually(lambda: locks.try_acquire(name), within=2).release()
    assert 1.2345 <= time.monotonic() - start < 3
    assert a.lost


def forbidden(*args: Any) -> Any:
    raise AssertionError("the store was asked")


@pytest.mark.parametrize("ttl", NO_DURATIONS)
@pytest.mark.usefixtures("any_store")
def test_ttl_that_is_no_duration_is_refused_before_the_store_is_asked(ttl: Any, name: str) -> None:
    """B008"""
    with patched(store(), "acquire", forbidden), pytest.raises((TypeError, ValueError), match="ttl"):
        locks.try_acquire(name, ttl=ttl)
    assert locks.get(name) is None


@pytest.mark.parametrize("ttl", [*NO_DURATIONS, None])
@pytest.mark.usefixtures("memory_locks")
def test_ttl_of_the_settings_that_is_no_duration_is_an_error_of_the_checks(ttl: Any, name: str, settings: Any) -> None:
    """B008"""
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "TTL": ttl}}
    (message,) = run_checks(tags=["django_locks"])
    assert message.id == "django_locks.E004"
    assert repr(ttl) in message.msg
    with pytest.raises(InvalidLockStore, match="TTL"):
        locks.try_acquire(name)


@pytest.mark.usefixtures("any_store")
def test_ten_years_are_granted_and_more_is_a_value_error(name: str) -> None:
    """B009"""
    with locks.lock(name, ttl=LONGEST) as guard:
        assert LONGEST - 60 < locks.get(name).remaining <= LONGEST
        guard.extend()
        assert LONGEST - 60 < guard.remaining <= LONGEST
    for ttl in (10**12, 10**20, 1e300):
        with pytest.raises(ValueError, match="at most ten years"):
            locks.try_acquire(name, ttl=ttl)
    assert locks.get(name) is None
