"""Distributed lease locks for Django."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conf import locks, with_lock
    from .decorators import SKIPPED, Skipped
    from .exceptions import (
        AlreadyHeld,
        InvalidLockStore,
        LeaseLost,
        LockError,
        LockNotAcquired,
        LockStoreDoesNotExist,
        StoreUnavailable,
    )
    from .guard import LockGuard
    from .service import LocksService
    from .values import LeaseInfo

__version__ = "0.1.0"

__all__ = [
    "SKIPPED",
    "AlreadyHeld",
    "InvalidLockStore",
    "LeaseInfo",
    "LeaseLost",
    "LockError",
    "LockGuard",
    "LockNotAcquired",
    "LockStoreDoesNotExist",
    "LocksService",
    "Skipped",
    "StoreUnavailable",
    "__version__",
    "locks",
    "with_lock",
]

# Loaded when they are first used: a process that takes no lock does not pay for it.
_HOMES = {
    "conf": ("locks", "with_lock"),
    "decorators": ("SKIPPED", "Skipped"),
    "exceptions": (
        "AlreadyHeld",
        "InvalidLockStore",
        "LeaseLost",
        "LockError",
        "LockNotAcquired",
        "LockStoreDoesNotExist",
        "StoreUnavailable",
    ),
    "guard": ("LockGuard",),
    "service": ("LocksService",),
    "values": ("LeaseInfo",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
