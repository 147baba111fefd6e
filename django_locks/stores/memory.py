"""Leases in the memory of one process: for tests, and for threads of a single server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from django_locks import clock
from django_locks.exceptions import InvalidLockStore
from django_locks.findings import WARN, Finding
from django_locks.stores.base import RELEASED, BaseStore, Claim
from django_locks.stores.waiting import Waiters
from django_locks.tasks import see_through_here
from django_locks.text import without_passwords
from django_locks.values import LeaseInfo

T = TypeVar("T")

SWEEP_EVERY = 8  # grants


class _Lease:
    __slots__ = ("acquired", "expires", "fence", "holder", "owner", "wall")

    def __init__(self, owner: str, fence: int, holder: str, now: float, ttl: float) -> None:
        self.owner = owner
        self.fence = fence
        self.holder = holder
        self.acquired = now
        self.wall = clock.epoch()
        self.expires = now + ttl


class _ReleasePushes:
    """Every release of a table wakes its waiters, so nothing needs to be watched."""

    def want(self, name: str) -> None:
        return None

    def unwant(self, name: str) -> None:
        return None

    def is_watching(self, name: str) -> bool:
        return True


class _Table:
    """All leases of one LOCATION. Expired ones are dropped a few at each grant, never a live one."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.waiters = Waiters()
        self.waiters.push = _ReleasePushes()
        # Re-entrant, since a signal handler may come in between and take or give back a lock of its own.
        self.mutex = threading.RLock()
        self.leases: dict[str, _Lease] = {}
        self.fence = 0
        self._to_sweep: list[str] = []
        self._grants = 0

    def live(self, name: str, now: float) -> _Lease | None:
        lease = self.leases.get(name)
        return lease if lease is not None and lease.expires > now else None

    def owned(self, name: str, owner: str, now: float) -> _Lease | None:
        lease = self.live(name, now)
        return lease if lease is not None and lease.owner == owner else None

    def next_fence(self) -> int:
        now = time.time_ns() // 1000
        self.fence = now if now > self.fence else self.fence + 1
        return self.fence

    def sweep(self, now: float) -> None:
        # Two for each new one, a few at a time, in rounds over all names: what has expired cannot outgrow what is live.
        self._grants += 1
        if self._grants < SWEEP_EVERY:
            return
        self._grants = 0
        to_sweep = self._to_sweep
        if not to_sweep:
            to_sweep.extend(self.leases)
        for _ in range(min(2 * SWEEP_EVERY, len(to_sweep))):
            lease = self.leases.get(name := to_sweep.pop())
            if lease is not None and lease.expires <= now:
                del self.leases[name]


# By LOCATION, so that every store object of the process that names the same table meets the same leases.
_tables: dict[str, _Table] = {}


def _forget_parent() -> None:
    for table in _tables.values():
        table.clear()


if hasattr(os, "register_at_fork"):
    # A child is another process: its parent's leases exclude nobody in it, and a mutex that another thread of the
    # parent held at the fork would never be free.
    os.register_at_fork(after_in_child=_forget_parent)


class MemoryStore(BaseStore):
    """Keep leases in this process. ``LOCATION`` is the name of a table; other processes are not excluded."""

    process_local = True

    def __init__(self, alias: str, location: Any = None, key_prefix: str = "") -> None:
        super().__init__(alias, location, key_prefix)
        if location is not None and not isinstance(location, str):
            raise InvalidLockStore(
                f"LOCKS[{alias!r}]['LOCATION'] of a memory store is the name of a table (text), "
                f"not {without_passwords(repr(location))}.",
                alias=alias,
            )
        self._table = _tables.setdefault(location or "", _Table())
        self.waiters = self._table.waiters

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        table, now = self._table, clock.now()
        with table.mutex:
            lease = table.leases.get(name)
            if lease is None or lease.expires <= now:
                lease = table.leases[name] = _Lease(owner, table.next_fence(), holder, now, ttl)
                table.sweep(now)
            elif lease.owner == owner:
                lease.expires = now + ttl
            else:
                return None
            return lease.fence

    def renew(self, leases: Sequence[Claim]) -> set[str]:
        table, now = self._table, clock.now()
        renewed = set()
        with table.mutex:
            for name, owner, ttl in leases:
                lease = table.owned(name, owner, now)
                if lease is not None:
                    lease.expires = now + ttl
                    renewed.add(name)
        return renewed

    def release(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        table, now = self._table, clock.now()
        with table.mutex:
            lease = table.leases.get(name)
            if lease is None or lease.owner != owner or lease.expires <= now:
                return False
            if hold_for > 0:
                lease.owner = ""
                lease.expires = now + hold_for
            else:
                del table.leases[name]
        if table.waiters:
            table.waiters.wake(name)
        return True

    def get(self, name: str) -> LeaseInfo | None:
        table, now = self._table, clock.now()
        with table.mutex:
            lease = table.live(name, now)
            return None if lease is None else _info(name, lease, now)

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        table, now = self._table, clock.now()
        with table.mutex:
            found = [
                _info(name, lease, now)
                for name, lease in table.leases.items()
                if name.startswith(prefix) and lease.expires > now
            ]
        yield from sorted(found, key=lambda lease: lease.name)

    def see_through(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return see_through_here(coroutine)

    async def aacquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        return self.acquire(name, owner, ttl, holder)

    async def arenew(self, leases: Sequence[Claim]) -> set[str]:
        return self.renew(leases)

    async def arelease(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        return self.release(name, owner, hold_for, outcome)

    async def aget(self, name: str) -> LeaseInfo | None:
        return self.get(name)

    def prune(self, older_than: float) -> int:
        with self._table.mutex:
            ended = self._ended(older_than)
            for name in ended:
                del self._table.leases[name]
        return len(ended)

    def count_free(self, older_than: float) -> int:
        with self._table.mutex:
            return len(self._ended(older_than))

    def _ended(self, older_than: float) -> list[str]:
        before = clock.now() - older_than
        return [name for name, lease in self._table.leases.items() if lease.expires <= before]

    def diagnose(self) -> Iterator[Finding]:
        yield Finding(
            WARN,
            "exclusion",
            "leases are in the memory of each process: no other process, replica or command is excluded",
            "Choose the database store or the Redis store in LOCKS, except for tests.",
        )


def _info(name: str, lease: _Lease, now: float) -> LeaseInfo:
    remaining, acquired_at = lease.expires - now, clock.moment(lease.wall)
    return LeaseInfo(
        name=name,
        owner=lease.owner,
        holder=lease.holder,
        fence=lease.fence,
        acquired_at=acquired_at,
        expires_at=acquired_at + timedelta(seconds=now - lease.acquired + remaining),
        remaining=remaining,
    )
