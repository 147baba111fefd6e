"""One caller's wish for a lock, from the first try to the grant. Here is the only loop that waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from asgiref.sync import sync_to_async

from . import chance, clock, signals
from .exceptions import AlreadyHeld, LockNotAcquired, StoreUnavailable
from .grants import Grant, Taker, Terms
from .guard import LockGuard
from .holding import held_by, leaving
from .stores.base import BaseStore
from .tasks import is_called_by_sync_code, see_through
from .values import LeaseInfo, Name, describe_duration, describe_lease, new_owner, unprefixed


class Slot(NamedTuple):
    """A lease that would do."""

    name: str  #: as the caller wrote it
    key: str  #: as it is stored


class Claim:
    """All tries of one caller have the same owner, so that a grant whose reply was lost is found again."""

    __slots__ = (
        "_began",
        "holder",
        "limited",
        "name",
        "owner",
        "prefix",
        "slots",
        "store",
        "taker",
        "template",
        "terms",
    )

    def __init__(
        self, store: BaseStore, name: str, prefix: str, limit: int | None, holder: str, terms: Terms, taker: Taker
    ) -> None:
        self.store = store
        self.name = name
        self.template = ""
        if type(name) is Name:
            self.template = name.template
            name = self.name = str(name)
        self.prefix = prefix
        self.holder = holder
        self.terms = terms
        self.owner = new_owner()
        self.taker = taker
        self.limited = limit is not None
        self.slots: Sequence[Slot] = (Slot(name, prefix + name),) if limit is None else _places(name, prefix, limit)
        self._began = clock.now()

    def take(self) -> LockGuard | None:
        """Try once."""
        guard = self._take()
        if guard is None and signals.lock_refused.receivers:
            self._report_refusal(None)
        return guard

    async def atake(self) -> LockGuard | None:
        """Try once."""
        guard = await self._atake()
        if guard is None and signals.lock_refused.receivers:
            self._report_refusal(None)
        return guard

    def _take(self) -> LockGuard | None:
        if leaving and (guard := self._take_up()) is not None:
            return guard
        store = self.store
        for slot in self.slots:
            sent = clock.now()
            try:
                fence = store.acquire(slot.key, self.owner, self._ttl, self.holder)
                guard = None if fence is None else self._granted(slot, fence, sent, store.is_confined())
            except BaseException:
                self._give_back(slot)  # it may have been granted although no answer came
                raise
            if guard is not None:
                return guard
        return None

    async def _atake(self) -> LockGuard | None:
        if (guard := await self._atake_up()) is not None:
            return guard
        store = self.store
        for slot in self.slots:
            sent = clock.now()
            try:
                fence = await store.see_through(store.aacquire(slot.key, self.owner, self._ttl, self.holder))
                guard = None if fence is None else self._granted(slot, fence, sent, await store.ais_confined())
            except BaseException:
                await store.see_through(self._agive_back(slot))
                raise
            if guard is not None:
                return guard
        return None

    def take_within(self, wait: float) -> LockGuard:
        """Try until it is granted or ``wait`` seconds have passed. Raises `LockNotAcquired`, `AlreadyHeld`."""
        if wait > 0 and (courtesy := self.store.waiters.rivals.courtesy(self._watched)):
            time.sleep(min(courtesy, wait))
        guard = (self._take_up() if leaving else None) if self._has_to_queue(wait) else self._take()
        if guard is None and self._is_own():
            raise self._refusal(AlreadyHeld, self._lease(), 0.0)
        if guard is None and wait > 0:
            guard = self._wait_until(self._began + wait)
        if guard is None:
            raise self._refusal(LockNotAcquired, self._lease(), self._waited() if wait > 0 else 0.0)
        return guard

    async def atake_within(self, wait: float) -> LockGuard:
        """Do as `take_within`."""
        if wait > 0 and (courtesy := self.store.waiters.rivals.courtesy(self._watched)):
            await asyncio.sleep(min(courtesy, wait))
        guard = await (self._atake_up() if self._has_to_queue(wait) else self._atake())
        if guard is None and self._is_own():
            raise self._refusal(AlreadyHeld, await self._alease(), 0.0)
        if guard is None and wait > 0:
            guard = await self._await_until(self._began + wait)
        if guard is None:
            raise self._refusal(LockNotAcquired, await self._alease(), self._waited() if wait > 0 else 0.0)
        return guard

    def _has_to_queue(self, wait: float) -> bool:
        """Do others of this process wait already, so that it would be unfair to try first?"""
        return wait > 0 and self._watched in self.store.waiters

    def _wait_until(self, deadline: float) -> LockGuard | None:
        with self.store.watch(self._watched) as watch:
            while (left := deadline - clock.now()) > 0:
                lease = self.store.get(self._watched) if watch.is_first and not self.limited else None
                free = watch.is_first and lease is None and not self.limited
                if (free or watch.wait(left, lease) or self.limited) and (guard := self._take()) is not None:
                    return guard
        return None

    async def _await_until(self, deadline: float) -> LockGuard | None:
        with self.store.watch(self._watched) as watch:
            while (left := deadline - clock.now()) > 0:
                lease = await self.store.aget(self._watched) if watch.is_first and not self.limited else None
                free = watch.is_first and lease is None and not self.limited
                if (free or await watch.async_wait(left, lease) or self.limited) and (guard := await self._atake()):
                    return guard
        return None

    @property
    def _watched(self) -> str:
        return self.prefix + self.name

    @property
    def _ttl(self) -> float:
        return self.terms.ttl if self.terms.max_hold is None else min(self.terms.ttl, self.terms.max_hold)

    def _granted(self, slot: Slot, fence: int, sent: float, confined: bool) -> LockGuard:
        grant = Grant(self.store, slot.name, slot.key, self.owner, self.holder, fence, sent, self.template)
        guard = LockGuard(grant, self.terms, self.taker, 0.0, confined)
        if guard.discard_if_late():
            raise self.store.unavailable("acquire", slot.name, self._too_slow(clock.now() - sent))
        if signals.lease_acquired.receivers:
            signals.lease_acquired.send_robust(
                LockGuard,
                alias=self.store.alias,
                name=slot.name,
                template=self.template,
                guard=guard,
                waited=self._waited(),
            )
        return guard

    def _take_up(self) -> LockGuard | None:
        """Return the lease again that this thread has left inside the transaction that is still open."""
        for slot in self.slots:
            left = leaving.get((self.store, slot.key))
            if left is None or left.thread != threading.get_ident():
                continue
            sent = clock.now()
            if slot.key in self.store.renew([(slot.key, left.guard.owner, self._ttl)]):
                return left.guard.take_up(self.terms, self.taker, sent)
            left.guard.refused()
        return None

    async def _atake_up(self) -> LockGuard | None:
        if not leaving or not is_called_by_sync_code():
            return None
        return await see_through(sync_to_async(self._take_up)())

    def _is_own(self) -> bool:
        """Has the caller itself taken every lease that would do?"""
        return all(self._is_ours(held_by.get((self.store, slot.key))) for slot in self.slots)

    def _is_ours(self, held: tuple[str, Taker] | None) -> bool:
        if held is None:
            return False
        taker = held[1]
        return taker.thread == self.taker.thread if self.taker.task is None else taker.task is self.taker.task

    def _give_back(self, slot: Slot) -> None:
        try:
            self.store.release(slot.key, self.owner)
        except StoreUnavailable:
            return  # the TTL will

    async def _agive_back(self, slot: Slot) -> None:
        try:
            await self.store.arelease(slot.key, self.owner)
        except StoreUnavailable:
            return

    def _lease(self) -> LeaseInfo | None:
        try:
            return unprefixed(self.store.get(self.slots[0].key), self.prefix)
        except StoreUnavailable:
            return None

    async def _alease(self) -> LeaseInfo | None:
        try:
            return unprefixed(await self.store.aget(self.slots[0].key), self.prefix)
        except StoreUnavailable:
            return None

    def _too_slow(self, took: float) -> str:
        return (
            f"it answered after {describe_duration(took)}, too late for the TTL of "
            f"{describe_duration(self.terms.ttl)}; the lock was given back. Use a longer TTL, or a faster store."
        )

    def _waited(self) -> float:
        return clock.now() - self._began

    def _report_refusal(self, lease: LeaseInfo | None) -> None:
        signals.lock_refused.send_robust(
            LockGuard,
            alias=self.store.alias,
            name=self.name,
            template=self.template,
            waited=self._waited(),
            lease=lease,
        )

    def _refusal(self, kind: type[LockNotAcquired], lease: LeaseInfo | None, waited: float) -> LockNotAcquired:
        if kind is AlreadyHeld:
            why = f"The calling {'thread' if self.taker.task is None else 'task'} has it, and would wait for itself."
        elif waited:
            why = f"Gave up after waiting {describe_duration(waited)}."
        else:
            why = "Did not wait; pass wait= to do so."
        self._report_refusal(lease)
        which = f"{self.name!r} (store {self.store.alias!r})"
        which += f", all {len(self.slots)} of its places taken," if len(self.slots) > 1 else ""
        return kind(
            f"The lock {which} {describe_lease(lease)}. {why}",
            name=self.name,
            alias=self.store.alias,
            lease=lease,
            waited=waited,
        )


def wait_until_free(store: BaseStore, key: str, wait: float) -> LeaseInfo | None:
    """Return ``None`` as soon as nobody has the key, or after ``wait`` seconds the lease of who still has it."""
    deadline = clock.now() + wait
    with store.watch(key) as watch:
        while True:
            lease, left = store.get(key), deadline - clock.now()
            if lease is None or left <= 0:
                return lease
            watch.wait(left, lease)


def _places(name: str, prefix: str, limit: int) -> Sequence[Slot]:
    slots = [Slot(f"{name}#{place}", f"{prefix}{name}#{place}") for place in range(limit)]
    start = chance.randrange(limit)  # spreads the takers, and most succeed at the first try
    return slots[start:] + slots[:start]
