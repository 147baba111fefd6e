"""For tests of code that takes locks, and of lock stores.

- `override_locks`, and the pytest fixture ``memory_locks``: locks in memory, of one test's own
- `hold`: somebody else holds a lock
- `lose`: a guard loses its lease
- `unavailable`: the store cannot be asked
- `assert_locked`, `assert_unlocked`
- `movable_clock`: time passes without waiting for it
- `StoreContract`, `AsyncStoreContract`: the suite that every lock store passes
"""

from .async_contract import AsyncStoreContract
from .contract import STRANGE_NAMES, StoreContract
from .kit import MovableClock, assert_locked, assert_unlocked, hold, lose, movable_clock, override_locks, unavailable

__all__ = [
    "STRANGE_NAMES",
    "AsyncStoreContract",
    "MovableClock",
    "StoreContract",
    "assert_locked",
    "assert_unlocked",
    "hold",
    "lose",
    "movable_clock",
    "override_locks",
    "unavailable",
]
