"""Distributed lease locks for Django."""

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
