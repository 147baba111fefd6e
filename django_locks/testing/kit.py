"""What a test of code that takes locks needs: locks of its own, and locks that get into trouble."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from django.test import override_settings

from django_locks import clock
from django_locks.conf import configured, entries, locks
from django_locks.exceptions import StoreUnavailable
from django_locks.guard import LockGuard
from django_locks.renewal import keeper
from django_locks.stores.base import BROKEN, BaseStore
from django_locks.values import LeaseInfo, Seconds, clean_duration, new_owner

VERBS = ("acquire", "renew", "release", "get", "leases", "prune")
ASYNC_VERBS = ("aacquire", "arenew", "arelease", "aget", "aleases")
MEMORY = "django_locks.stores.memory.MemoryStore"


class override_locks(override_settings):  # noqa: N801 - as Django's
    """Keep all locks in memory, of this test's own: a context manager, and a decorator of functions and test cases.

    Every alias of ``LOCKS`` keeps its name and its other keys; ``entry`` changes some of them for all::

        @override_locks(TTL=5)
        def test_report(): ...
    """

    def __init__(self, **entry: Any) -> None:
        super().__init__()
        self._entry = entry

    def enable(self) -> None:
        self.options = self._fresh()
        super().enable()

    def decorate_class(self, cls: Any) -> Any:
        self.options = self._fresh()
        return super().decorate_class(cls)

    def _fresh(self) -> dict[str, Any]:
        return {"LOCKS": {alias: self._in_memory(alias) for alias in configured()}}

    def _in_memory(self, alias: str) -> dict[str, Any]:
        kept = {key: value for key, value in configured()[alias].items() if key not in ("OPTIONS", "LOCATION")}
        return {**kept, "BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, **self._entry}


@contextmanager
def hold(name: str, *, using: str = "default", ttl: Seconds = 3600, by: str = "somebody else") -> Iterator[LeaseInfo]:
    """Let somebody else hold the lock. Raises AssertionError if it is held already."""
    entry, owner = entries(using), new_owner()
    key = entry.prefix + name
    fence = entry.store.acquire(key, owner, clean_duration(ttl, "ttl"), by)
    if fence is None:
        raise AssertionError(f"The lock {name!r} (store {using!r}) is held already.")
    try:
        yield assert_locked(name, using=using)
    finally:
        entry.store.release(key, owner)


def lose(guard: LockGuard) -> None:
    """Take the guard's lease away, as a takeover does; return when ``on_lost`` and the receivers have been called."""
    guard.store.release(guard.key, guard.owner, outcome=BROKEN)
    guard.refused()
    told = threading.Event()
    keeper.announce(told.set)
    told.wait(10)


@contextmanager
def unavailable(using: str = "default") -> Iterator[None]:
    """Let every call to the store raise `StoreUnavailable`."""
    store = entries(using).store
    with ExitStack() as stack:
        for verb in VERBS:
            stack.enter_context(mock.patch.object(store, verb, _refuse(store, verb)))
        for verb in ASYNC_VERBS:
            stack.enter_context(mock.patch.object(store, verb, _arefuse(store, verb)))
        yield


def _refuse(store: BaseStore, verb: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _outage(store, verb)

    return refuse


def _arefuse(store: BaseStore, verb: str) -> Callable[..., Any]:
    async def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _outage(store, verb)

    return refuse


def _outage(store: BaseStore, verb: str) -> StoreUnavailable:
    return store.unavailable(verb, "", "made unavailable by django_locks.testing")


def assert_locked(name: str, *, using: str = "default") -> LeaseInfo:
    """Return who holds the lock. Raises AssertionError if nobody does."""
    lease = locks.using(using).get(name)
    if lease is None:
        held = ", ".join(repr(other.name) for other in locks.using(using).leases()) or "none"
        raise AssertionError(f"The lock {name!r} (store {using!r}) is free. Held: {held}.")
    return lease


def assert_unlocked(name: str, *, using: str = "default") -> None:
    """Raise AssertionError if somebody holds the lock."""
    lease = locks.using(using).get(name)
    if lease is not None:
        raise AssertionError(f"The lock {name!r} (store {using!r}) is held by {lease.holder}.")


class MovableClock:
    """The holder's clock, and that of the memory store, which a test moves on."""

    def __init__(self) -> None:
        self._now = clock.now
        self._moved = 0.0

    def now(self) -> float:
        """Return seconds since some fixed moment."""
        return self._now() + self._moved

    def advance(self, seconds: Seconds) -> None:
        """Let time pass at once. What is due then happens soon, in the keeper's threads."""
        self._moved += clean_duration(seconds, "seconds")
        keeper.look()


@contextmanager
def movable_clock() -> Iterator[MovableClock]:
    """Let time be moved on; other stores than memory have clocks of their own, and go on unmoved."""
    movable = MovableClock()
    with mock.patch.object(clock, "now", movable.now):
        yield movable
