"""Locks of one store as their onlookers see them: who holds what, and how to free it, without holding anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from . import signals
from .claims import wait_until_free
from .options import LockSettings
from .stores.base import BROKEN, RESUMED
from .values import (
    PAUSED,
    LeaseInfo,
    Seconds,
    clean_duration,
    clean_holder,
    clean_name,
    clean_wait,
    template_of,
    unprefixed,
)


class Oversight:
    """What of `LocksService` needs no guard."""

    def __init__(self, alias: str, settings: Callable[[str], LockSettings]) -> None:
        self.alias = alias
        self._settings = settings

    def get(self, name: str) -> LeaseInfo | None:
        """Return who holds the lock, or ``None`` if it is free."""
        name, settings = clean_name(name), self._settings(self.alias)
        return unprefixed(settings.store.get(settings.prefix + name), settings.prefix)

    async def aget(self, name: str) -> LeaseInfo | None:
        """Do as `get`."""
        name, settings = clean_name(name), self._settings(self.alias)
        return unprefixed(await settings.store.aget(settings.prefix + name), settings.prefix)

    def wait_until_free(self, name: str, *, wait: Seconds | None = None) -> LeaseInfo | None:
        """Wait until nobody holds the lock, without taking it, and return ``None``.

        After ``wait`` seconds (``None``: never) returns the lease of who still holds it.
        """
        seconds, name, settings = clean_wait(wait), clean_name(name), self._settings(self.alias)
        return unprefixed(wait_until_free(settings.store, settings.prefix + name, seconds), settings.prefix)

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """Yield all live leases whose name begins with ``prefix``, ordered by name where the store can."""
        settings = self._listing(prefix)
        for lease in settings.store.leases(settings.prefix + prefix):
            yield unprefixed(lease, settings.prefix) or lease

    async def aleases(self, prefix: str = "") -> AsyncIterator[LeaseInfo]:
        """Do as `leases`."""
        settings = self._listing(prefix)
        async for lease in settings.store.aleases(settings.prefix + prefix):
            yield unprefixed(lease, settings.prefix) or lease

    def _listing(self, prefix: str) -> LockSettings:
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be text, not {prefix!r}.")
        return self._settings(self.alias)

    def force_release(self, name: str, *, fence: int | None = None) -> bool:
        """Break the lease of whoever holds the lock, and return whether there was one.

        Its holder is told that it is lost when it next renews. With ``fence``, breaks only that very lease, and never
        one that was granted in the meantime.
        """
        name, settings = clean_name(name), self._settings(self.alias)
        key = settings.prefix + name
        lease = settings.store.get(key)
        if lease is None or (fence is not None and lease.fence != fence):
            return False
        return self._broken(name, lease, settings.store.release(key, lease.owner, outcome=BROKEN))

    async def aforce_release(self, name: str, *, fence: int | None = None) -> bool:
        """Do as `force_release`."""
        name, settings = clean_name(name), self._settings(self.alias)
        key = settings.prefix + name
        lease = await settings.store.aget(key)
        if lease is None or (fence is not None and lease.fence != fence):
            return False
        return self._broken(
            name, lease, await settings.store.see_through(settings.store.arelease(key, lease.owner, outcome=BROKEN))
        )

    def _broken(self, name: str, lease: LeaseInfo, done: bool) -> bool:
        if done:
            signals.lease_broken.send_robust(
                type(self), alias=self.alias, name=str(name), template=template_of(name), lease=lease
            )
        return done

    def force_extend(self, name: str, ttl: Seconds, *, fence: int | None = None) -> bool:
        """Let the lease of whoever holds the lock end ``ttl`` seconds from now, and return whether there was one.

        With ``fence``, only that very lease. Its holder's next renewal counts its own TTL again.
        """
        seconds = clean_duration(ttl, "ttl")
        name, settings = clean_name(name), self._settings(self.alias)
        key = settings.prefix + name
        lease = settings.store.get(key)
        if lease is None or not lease.owner or (fence is not None and lease.fence != fence):
            return False
        return key in settings.store.renew([(key, lease.owner, seconds)])

    def pause(self, name: str, seconds: Seconds, *, note: str = "") -> bool:
        """Take the lock out of use for so long, so that nobody is granted it; or return False if somebody holds it.

        ``note`` is shown to those who are refused. A pause that is paused again lasts from now on.
        """
        duration = clean_duration(seconds, "seconds")
        name, settings = clean_name(name), self._settings(self.alias)
        label = clean_holder(note or settings.holder())
        return settings.store.acquire(settings.prefix + name, PAUSED, duration, label) is not None

    def resume(self, name: str) -> bool:
        """Put a paused lock back into use, and return whether it was paused."""
        name, settings = clean_name(name), self._settings(self.alias)
        return settings.store.release(settings.prefix + name, PAUSED, outcome=RESUMED)
