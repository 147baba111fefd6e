"""Any value in place of a duration: a number of seconds, or one clear error before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_locks import conf, locks, with_lock
from django_locks.exceptions import LeaseLost, StoreUnavailable
from django_locks.management.arguments import duration
from django_locks.values import LONGEST, clean_duration, clean_wait
from tests.fuzz.profile import examples
from tests.fuzz.strategies import ANYTHING, DURATIONS, TEXT

TAKES: dict[str, Callable[[Any], Any]] = {
    "ttl": lambda value: locks.try_acquire("x", ttl=value),
    "at_least": lambda value: locks.try_acquire("x", at_least=value),
    "max_hold": lambda value: locks.try_acquire("x", max_hold=value),
    "wait": lambda value: locks.acquire("x", wait=value),
    "lock": lambda value: locks.lock("x", wait=value, ttl=value),
    "lock_many": lambda value: locks.lock_many(["x"], ttl=value),
    "with_lock": lambda value: with_lock("x", ttl=value),
    "leader": lambda value: locks.leader("x", ttl=value),
    "pause": lambda value: locks.pause("x", value),
    "force_extend": lambda value: locks.force_extend("x", value),
    "wait_until_free": lambda value: locks.wait_until_free("x", wait=value),
}
NONE_IS_FINE = set(TAKES) - {"pause", "force_extend"}


def is_number(value: object) -> bool:
    return isinstance(value, int | float | timedelta) and not isinstance(value, bool)


def is_duration(value: Any) -> bool:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return bool(0 < seconds <= LONGEST)  # NaN compares with nothing


def is_zero(value: Any) -> bool:
    return is_number(value) and value in (0, timedelta())


def stored() -> dict[str, Any]:
    leases: dict[str, Any] = conf.entries("default").store._table.leases  # type: ignore[attr-defined]
    return leases


@examples(1000)
@given(ANYTHING)
def test_value_is_seconds_or_an_error_that_names_it(value: Any) -> None:
    for clean, fits in ((clean_duration, False), (clean_wait, True)):
        if value is None and fits:
            assert clean(value, "the time") == float("inf")
        elif not is_number(value):
            with pytest.raises(TypeError, match="the time"):
                clean(value, "the time")
        elif is_duration(value) or (fits and value in (0, timedelta())):
            assert 0 <= clean(value, "the time") <= LONGEST
        else:
            with pytest.raises(ValueError, match="the time") as caught:
                clean(value, "the time")
            assert repr(value) in str(caught.value)


@pytest.mark.usefixtures("memory_locks")
@pytest.mark.parametrize("call", TAKES)
@examples(60)
@given(value=ANYTHING.filter(lambda value: not is_number(value) or not is_duration(value)))
def test_bad_duration_is_refused_by_every_call_and_stores_nothing(call: str, value: Any) -> None:
    if (value is None and call in NONE_IS_FINE) or (call.startswith("wait") and is_zero(value)):
        return
    with pytest.raises((TypeError, ValueError)) as caught:
        TAKES[call](value)
    assert type(caught.value) is (ValueError if is_number(value) else TypeError)
    assert stored() == {}


@pytest.mark.usefixtures("memory_locks")
@examples(120)
@given(value=DURATIONS)
@example(5e-324)
@example(float(LONGEST))
@example(timedelta(microseconds=1))
def test_good_duration_is_granted_or_too_short_to_be_of_use(value: Any) -> None:
    try:
        guard = locks.acquire("x", ttl=value)
        guard.extend(value)
        assert guard.remaining <= LONGEST
        guard.release()
    except (StoreUnavailable, LeaseLost) as error:
        assert "TTL" in str(error)
        assert clean_duration(value, "ttl") < 1
    locks.force_release("x")
    assert list(locks.leases()) == []


@examples(3)
@given(values=st.lists(DURATIONS.map(lambda value: clean_duration(value, "ttl")), min_size=20, max_size=30))
def test_every_store_takes_any_good_duration(every_store: Any, values: list[float]) -> None:
    store = conf.entries("default").store
    for value in [*values, 5e-324, 1e-6, float(LONGEST)]:
        assert store.acquire("x", "a" * 32, value, "me")
        for lease in filter(None, [store.get("x")]):
            assert 0 <= lease.remaining <= value + 0.002
        store.renew([("x", "a" * 32, value)])
        store.renew([("x", "a" * 32, value), ("y", "a" * 32, value)])
        store.release("x", "a" * 32, value)
        store.release("x", "")
        assert value < 1 or store.get("x") is None


@examples(800)
@given(TEXT | st.from_regex(r"[0-9]{1,14}(\.[0-9]{0,10})?(ms|s|m|h|d|w)?", fullmatch=True))
def test_text_of_the_command_line_is_a_duration_or_a_usage_error(text: str) -> None:
    from argparse import ArgumentTypeError

    try:
        assert 0 < duration(text) <= LONGEST
    except ArgumentTypeError as error:
        assert "duration" in str(error)
