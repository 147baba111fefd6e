"""One held lease, from its grant to its end."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from datetime import datetime, timedelta
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from . import clock, signals
from .exceptions import LeaseLost, StoreUnavailable
from .stores.base import FAILED, RELEASED
from .values import describe_duration

if TYPE_CHECKING:
    from .stores.base import BaseStore

logger = logging.getLogger("django_locks")


class Terms(NamedTuple):
    """On what terms a lease is held. Durations in seconds."""

    ttl: float
    at_least: float | None = None


class Grant(NamedTuple):
    """What the store has granted, and to whom."""

    store: BaseStore
    name: str  #: as the caller wrote it
    key: str  #: as it is stored, with the prefix
    owner: str
    holder: str
    fence: int
    sent: float  #: the holder's clock before the request was sent: the lease is counted from there


# Which thread holds a key of a store, and by which grant: whoever is refused one of its own must not wait for itself.
held_by: dict[tuple[BaseStore, str], tuple[str, int]] = {}

_turn = threading.RLock()  # one change of state at a time; re-entrant, since a signal handler may release


class _State(Enum):
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class LockGuard:
    """A held lock. Leave it with `release`, or use it as a context manager, which releases on exit.

    A guard that is dropped without a release frees its lock only when the TTL has run out, and warns
    (`ResourceWarning`). Any thread may use and release it.
    """

    def __init__(self, grant: Grant, terms: Terms) -> None:
        self._grant = grant
        self._terms = terms
        self._state = _State.HELD
        self._why_lost = ""
        self._granted = clock.now()
        self._acquired_at = clock.wall()
        self._expires = grant.sent + terms.ttl
        self._pid = os.getpid()
        held_by[grant.store, grant.key] = grant.owner, threading.get_ident()

    @property
    def name(self) -> str:
        """The name as the caller wrote it, without ``KEY_PREFIX``."""
        return self._grant.name

    @property
    def alias(self) -> str:
        """The alias of the store in ``LOCKS``."""
        return self._grant.store.alias

    @property
    def owner(self) -> str:
        """The secret that proves this grant. Keep it out of logs."""
        return self._grant.owner

    @property
    def holder(self) -> str:
        """The label that others see."""
        return self._grant.holder

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of every earlier grant of this name."""
        return self._grant.fence

    @property
    def ttl(self) -> float:
        """Seconds from a grant to its expiry."""
        return self._terms.ttl

    @property
    def acquired_at(self) -> datetime:
        """When the lock was granted, aware UTC by this host's clock."""
        return self._acquired_at

    @property
    def expires_at(self) -> datetime:
        """When the lease ends, aware UTC by this host's clock."""
        return self._acquired_at + timedelta(seconds=self._expires - self._granted)

    @property
    def remaining(self) -> float:
        """Seconds until the store lets the lease expire, by the holder's clock; never overstated."""
        if self.lost or self.released:
            return 0.0
        return max(0.0, self._expires - clock.now())

    @property
    def lost(self) -> bool:
        """Is the lease over although it was not released? No I/O. In a forked child always true."""
        if self._state is _State.HELD:
            if self._pid != os.getpid():
                self._lose("belongs to the parent of this process: take it anew after a fork")
            elif clock.now() >= self._expires:
                self._lose(f"has run out after its TTL of {describe_duration(self.ttl)}")
        return self._state is _State.LOST

    @property
    def released(self) -> bool:
        """Has the lease been given back?"""
        return self._state is _State.RELEASED

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is still ours. No I/O."""
        if self.lost or self.released:
            raise self._loss()

    def release(self) -> bool:
        """Give the lock back and return True, or False if it was not ours any more or has been given back before.

        Raises `StoreUnavailable` if the store cannot be asked: the lease then still counts as held, and `release`
        may be called again.
        """
        return self._release(RELEASED)

    def _release(self, outcome: str) -> bool:
        if self.lost or self.released:
            return False
        grant = self._grant
        released = grant.store.release(grant.key, grant.owner, self._hold_for(), outcome)
        if not released:
            self._lose("is not ours any more: somebody took it over, or freed it by force")
            return False
        self._end(_State.RELEASED)
        signals.lease_released.send_robust(type(self), alias=self.alias, name=self.name, guard=self)
        return True

    def _hold_for(self) -> float:
        if self._terms.at_least is None:
            return 0.0
        return max(0.0, self._granted + self._terms.at_least - clock.now())

    def _lose(self, why: str) -> None:
        if self._end(_State.LOST):
            self._why_lost = why

    def _end(self, state: _State) -> bool:
        with _turn:
            if self._state is not _State.HELD:
                return False
            self._state = state
        self._forget()
        return True

    def _forget(self) -> None:
        key = self._grant.store, self._grant.key
        if held_by.get(key, ("",))[0] == self.owner:
            del held_by[key]

    def _loss(self) -> LeaseLost:
        return LeaseLost(
            f"The lease of {self.name!r} (store {self.alias!r}, fence {self.fence}) "
            f"{self._why_lost or 'has been released'}. "
            "Somebody else may hold it: stop, and write nothing in its name.",
            name=self.name,
            alias=self.alias,
            guard=self,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.released:
            return
        loss = self._leave(FAILED if error else RELEASED)
        if loss is None or isinstance(error, LeaseLost):
            return
        if error is None:
            raise loss
        error.add_note(str(loss))

    def _leave(self, outcome: str) -> LeaseLost | None:
        try:
            self._release(outcome)
        except StoreUnavailable as error:
            logger.warning(
                "The lock %r (store %r) could not be released, and is free when its TTL has run out: %s",
                self.name,
                self.alias,
                error,
                extra={"lock": self.name, "lock_store": self.alias, "holder": self.holder},
            )
        return self._loss() if self.lost else None

    def __repr__(self) -> str:
        state = f"{self.remaining:.1f} s remaining" if self._state is _State.HELD else self._state.value
        return f"<LockGuard {self.name!r} of {self.alias!r}, fence {self.fence}, {state}>"

    def __del__(self) -> None:
        if self._state is not _State.HELD or self.lost:
            return
        self._forget()
        warnings.warn(
            f"The guard of {self.name!r} (store {self.alias!r}) was dropped without a release: the lock stays taken "
            f"for {describe_duration(self.remaining)}. Call guard.release(), or use a with block.",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )
