"""The contract suite on stores that break the contract: each has to be found out."""

from __future__ import annotations

import threading
import unittest
from typing import Any
from uuid import uuid4

import pytest

from django_locks.stores.base import BaseStore
from django_locks.stores.memory import MemoryStore
from django_locks.testing import StoreContract


class Generous(MemoryStore):
    """Grants to everybody."""

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        fence = super().acquire(name, owner, ttl, holder)
        return 1 if fence is None else fence


class FailsInThreads(MemoryStore):
    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        if threading.current_thread() is not threading.main_thread():
            raise KeyError(name)
        return super().acquire(name, owner, ttl, holder)


class Trusting(MemoryStore):
    """Renews and releases for anybody."""

    def renew(self, leases: Any) -> set[str]:
        return super().renew([(name, self._owner_of(name, owner), ttl) for name, owner, ttl in leases])

    def release(self, name: str, owner: str, *args: Any, **options: Any) -> bool:
        return super().release(name, self._owner_of(name, owner), *args, **options)

    def _owner_of(self, name: str, owner: str) -> str:
        lease = self.get(name)
        return owner if lease is None else str(lease.owner)


class Level(MemoryStore):
    """Has one fence for all."""

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        return super().acquire(name, owner, ttl, holder) and 7


class Endless(MemoryStore):
    """Lets no lease end."""

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        return super().acquire(name, owner, 3600, holder)


class Eager(MemoryStore):
    """Keeps no name after its release."""

    def release(self, name: str, owner: str, hold_for: float = 0, outcome: str = "released") -> bool:
        return super().release(name, owner, 0, outcome)


class Sloppy(MemoryStore):
    """Takes "X" for "x"."""

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        return super().acquire(name.lower(), owner, ttl, holder)


BROKEN = {
    Generous: "test_held_name_is_refused_to_others",
    FailsInThreads: "test_race_of_threads_has_one_winner_a_round",
    Trusting: "test_release_by_a_stranger_is_refused_and_changes_nothing",
    Level: "test_fence_rises_with_each_grant_however_the_one_before_ended",
    Endless: "test_lease_ends_with_its_ttl_and_not_before",
    Eager: "test_release_with_hold_keeps_the_name_taken_without_an_owner",
    Sloppy: "test_names_that_differ_by_case_accent_or_width_are_different",
}


@pytest.mark.parametrize("store", BROKEN, ids=lambda store: store.__name__)
def test_broken_store_is_found_out(store: type[BaseStore]) -> None:
    place = uuid4().hex

    class Suite(StoreContract, unittest.TestCase):
        def make_store(self) -> BaseStore:
            return store("default", place)

    assert not _passes(Suite(BROKEN[store]))


def test_sound_store_passes_the_same_tests() -> None:
    class Suite(StoreContract, unittest.TestCase):
        def make_store(self) -> BaseStore:
            return MemoryStore("default", "sound")

    for name in BROKEN.values():
        assert _passes(Suite(name)), name


def _passes(test: unittest.TestCase) -> bool:
    result = unittest.TestResult()
    test.run(result)
    return result.testsRun == 1 and not result.failures and not result.errors
