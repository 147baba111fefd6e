"""Any text, and what is none, in place of a lock's name: alike to every call and every store."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_locks import conf, locks
from django_locks.stores.base import BaseStore
from django_locks.values import clean_holder, clean_name, new_owner
from tests.fuzz.profile import examples
from tests.fuzz.strategies import NUMBERS, TEXT, THINGS

CALLS: dict[str, Callable[[Any], Any]] = {
    "try_acquire": lambda name: locks.try_acquire(name),
    "acquire": lambda name: locks.acquire(name),
    "lock": lambda name: locks.lock(name),
    "lock_many": lambda name: locks.lock_many(["fine", name]),
    "limit": lambda name: locks.acquire(name, limit=2),
    "get": lambda name: locks.get(name),
    "force_release": lambda name: locks.force_release(name),
    "force_extend": lambda name: locks.force_extend(name, 30),
    "pause": lambda name: locks.pause(name, 30),
    "resume": lambda name: locks.resume(name),
    "adopt": lambda name: locks.adopt(name, "0" * 32),
    "leader": lambda name: locks.leader(name),
    "wait_until_free": lambda name: locks.wait_until_free(name, wait=0),
    "atry_acquire": lambda name: asyncio.run(locks.atry_acquire(name)),
    "aacquire": lambda name: asyncio.run(locks.aacquire(name)),
    "aget": lambda name: asyncio.run(locks.aget(name)),
    "aforce_release": lambda name: asyncio.run(locks.aforce_release(name)),
    "aadopt": lambda name: asyncio.run(locks.aadopt(name, "0" * 32)),
}


def is_allowed(text: str) -> bool:
    """Say it in other words than the package does."""
    normal = unicodedata.normalize("NFC", text)
    strange = any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
    return 0 < len(normal) <= 200 and normal == normal.strip() and not strange


def stored() -> dict[str, Any]:
    leases: dict[str, Any] = conf.entries("default").store._table.leases  # type: ignore[attr-defined]
    return leases


@examples(1600)
@given(TEXT)
def test_text_is_a_name_or_a_value_error(text: str) -> None:
    if not is_allowed(text):
        with pytest.raises(ValueError, match="lock's name") as caught:
            clean_name(text)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1500
        return
    name = clean_name(text)
    assert name == unicodedata.normalize("NFC", text)
    assert clean_name(name) == name


@pytest.mark.usefixtures("memory_locks")
@pytest.mark.parametrize("call", CALLS)
@examples(40)
@given(name=TEXT.filter(lambda text: not is_allowed(text)))
def test_text_that_is_no_name_is_refused_by_every_call_and_stores_nothing(call: str, name: str) -> None:
    with pytest.raises(ValueError, match="lock's name"):
        CALLS[call](name)
    assert stored() == {}


@pytest.mark.usefixtures("memory_locks")
@pytest.mark.parametrize("call", CALLS)
@examples(40)
@given(name=st.one_of(NUMBERS, THINGS))
def test_what_is_no_text_is_refused_by_every_call_and_stores_nothing(call: str, name: object) -> None:
    with pytest.raises(TypeError, match="must be text"):
        CALLS[call](name)
    assert stored() == {}


@examples(25)
@given(texts=st.lists(TEXT.filter(is_allowed), min_size=1, max_size=25), holder=TEXT)
def test_names_and_holders_come_back_as_they_were(every_store: Any, texts: list[str], holder: str) -> None:
    store: BaseStore = conf.entries("default").store
    names, owner, label = sorted({clean_name(text) for text in texts}), new_owner(), clean_holder(holder)
    try:
        for name in names:
            assert store.acquire(name, owner, 60, label) is not None, name
            assert store.acquire(name, new_owner(), 60, label) is None, name
        assert store.renew([(name, owner, 60.0) for name in names]) == set(names)
        assert [(lease.name, lease.holder) for lease in store.leases()] == [(name, label) for name in names]
        for name in names:
            assert name in [lease.name for lease in store.leases(name)]
    finally:
        released = [store.release(name, owner) for name in names]
    assert all(released)
    assert list(store.leases()) == []
