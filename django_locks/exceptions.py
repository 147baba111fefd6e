"""Everything that can go wrong with a lock.

LockError
├── LockNotAcquired          somebody else holds it
│   └── AlreadyHeld          the caller itself holds it
├── LeaseLost                it was ours and is no longer
└── StoreUnavailable         the store could not be asked
InvalidLockStore             LOCKS is wrong (an ImproperlyConfigured)
└── LockStoreDoesNotExist    LOCKS has no such alias (a KeyError as well)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from .guard import LockGuard
    from .values import LeaseInfo


class LockError(Exception):
    """A lock could not be taken, kept or asked for. ``name`` and ``alias`` say which lock of which store.

    ``exit_code``: the exit status of a command that ends with this error, after sysexits(3).
    """

    exit_code = 70  # EX_SOFTWARE

    def __init__(self, message: str, *, name: str = "", alias: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.alias = alias


class LockNotAcquired(LockError):
    """Somebody else holds the lock.

    ``lease`` is the `LeaseInfo` of the holder, or ``None`` if the lock was free again when asked;
    ``waited`` the seconds spent waiting.
    """

    exit_code = 75  # EX_TEMPFAIL: try again later

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        alias: str = "",
        lease: LeaseInfo | None = None,
        waited: float = 0.0,
    ) -> None:
        super().__init__(message, name=name, alias=alias)
        self.lease = lease
        self.waited = waited


class AlreadyHeld(LockNotAcquired):
    """The same thread or task holds the lock already: waiting for it would be waiting for oneself."""


class LeaseLost(LockError):
    """The lease was ours and is no longer: somebody else may work under its name. ``guard`` is the one that lost it."""

    exit_code = 74  # EX_IOERR

    def __init__(self, message: str, *, name: str = "", alias: str = "", guard: LockGuard | None = None) -> None:
        super().__init__(message, name=name, alias=alias)
        self.guard = guard

    def __reduce__(self) -> tuple[Any, ...]:
        # A guard belongs to its process; an error that a task queue carries to another one goes without it.
        return type(self), self.args, {**self.__dict__, "guard": None}


class StoreUnavailable(LockError):
    """The store failed, so nobody knows who holds the lock. The driver's error is the ``__cause__``."""

    exit_code = 69  # EX_UNAVAILABLE


class InvalidLockStore(ImproperlyConfigured):
    """The setting ``LOCKS`` cannot be used. ``alias`` is the entry at fault."""

    exit_code = 78  # EX_CONFIG

    def __init__(self, message: str, *, name: str = "", alias: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.alias = alias


class LockStoreDoesNotExist(InvalidLockStore, KeyError):
    """``LOCKS`` has no entry of this alias."""

    __str__ = Exception.__str__  # KeyError's would print the message's repr
