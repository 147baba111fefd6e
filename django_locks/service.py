"""Locks of one store: what the application calls."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, TypedDict, Unpack

from . import clock, signals
from .decorators import Decorator, OnBusy
from .exceptions import AlreadyHeld, LockNotAcquired, StoreUnavailable
from .guard import Grant, LockGuard, Terms, held_by
from .stores.base import BROKEN, BaseStore
from .values import (
    LeaseInfo,
    Seconds,
    clean_duration,
    clean_name,
    clean_wait,
    describe_duration,
    describe_lease,
    new_owner,
)


class LockSettings(NamedTuple):
    """One entry of ``LOCKS``, ready to use."""

    store: BaseStore
    ttl: float
    prefix: str  #: what precedes every name in the store: ``"stg:"``, or nothing
    holder: Callable[[], str]


class TermsOptions(TypedDict, total=False):
    """What every way of taking a lock takes. Durations in seconds (int, float) or timedelta."""

    ttl: Seconds | None
    at_least: Seconds | None


class LocksService:
    """Take, look up and free the locks of one entry of ``LOCKS``. Settings are read at each call."""

    def __init__(self, alias: str, settings: Callable[[str], LockSettings]) -> None:
        self.alias = alias
        self._settings = settings

    def __repr__(self) -> str:
        return f"<LocksService {self.alias!r}>"

    def using(self, alias: str) -> LocksService:
        """Return the service of another entry of ``LOCKS``; one that does not exist is an error when it is used."""
        return LocksService(alias, self._settings)

    def try_acquire(self, name: str, **terms: Unpack[TermsOptions]) -> LockGuard | None:
        """Take the lock if it is free, and return its guard; or ``None`` if somebody else holds it. Never waits.

        ``ttl``: seconds until a crashed holder's lock is free again (default: ``LOCKS``' ``TTL``).
        ``at_least``: released earlier than so many seconds after the grant, the name stays taken until then.

        Raises ValueError or TypeError for a bad name or duration, `StoreUnavailable` if the store cannot be asked.
        """
        return self._claim(name, **terms).take()

    def acquire(self, name: str, *, wait: Seconds | None = 0, **terms: Unpack[TermsOptions]) -> LockGuard:
        """Take the lock and return its guard, waiting up to ``wait`` seconds (``None``: for ever) for it to be free.

        Other arguments as `try_acquire`. Raises `LockNotAcquired` if somebody else still holds it then, and
        `AlreadyHeld` at once if the calling thread itself does.
        """
        seconds = clean_wait(wait)
        return self._claim(name, **terms).take_within(seconds)

    def lock(self, name: str, *, wait: Seconds | None = 0, **terms: Unpack[TermsOptions]) -> Lock:
        """Return a context manager that takes the lock as `acquire` does, enters with the guard and releases on exit.

        It can be entered again and again, and by many threads: each entry has a guard of its own.
        """
        return Lock(self, name, clean_wait(wait), terms)

    def with_lock(
        self,
        target: Any = None,
        /,
        *,
        name: Any = None,
        using: str | None = None,
        wait: Seconds | None = 0,
        on_busy: OnBusy = "skip",
        **terms: Unpack[TermsOptions],
    ) -> Any:
        """Decorate a function, method or management command, so that it runs only while it holds the lock.

        ``name``: text; text with fields of the call's arguments (``"import:{tenant}"``); or, as ``name=``, a callable
        given the same arguments. Default: the function's module and qualified name.
        ``using``: the alias in ``LOCKS``. ``wait`` and the rest: as `acquire`.
        ``on_busy``: what a call does when somebody else holds the lock. ``"skip"`` returns `SKIPPED` and logs who;
        ``"raise"`` raises `LockNotAcquired`; a callable is called with that exception, and its result returned.
        """
        service = self if using is None else self.using(using)
        options = {"wait": wait, **terms}
        if callable(target) or isinstance(target, staticmethod | classmethod):
            return Decorator(service, name, on_busy, options)(target)
        if target is not None and name is not None:
            raise TypeError(f"with_lock got two names: {target!r} and {name!r}.")
        return Decorator(service, target if name is None else name, on_busy, options)

    def get(self, name: str) -> LeaseInfo | None:
        """Return who holds the lock, or ``None`` if it is free. Raises `StoreUnavailable`."""
        settings = self._settings(self.alias)
        return _unprefixed(settings.store.get(settings.prefix + clean_name(name)), settings.prefix)

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """Yield all live leases whose name begins with ``prefix``, ordered by name where the store can."""
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be text, not {prefix!r}.")
        settings = self._settings(self.alias)
        for lease in settings.store.leases(settings.prefix + prefix):
            yield _unprefixed(lease, settings.prefix)

    def force_release(self, name: str, *, fence: int | None = None) -> bool:
        """Break the lease of whoever holds the lock: True if there was one.

        Its holder is told that the lease is lost when it next renews. With ``fence``, breaks only that very lease, and
        never one that was granted in the meantime.
        """
        settings = self._settings(self.alias)
        key = settings.prefix + clean_name(name)
        lease = settings.store.get(key)
        if lease is None or (fence is not None and lease.fence != fence):
            return False
        return settings.store.release(key, lease.owner, outcome=BROKEN)

    def _claim(self, name: str, **options: Unpack[TermsOptions]) -> _Claim:
        name = clean_name(name)
        terms = clean_terms(options)
        return _Claim(self, self._settings(self.alias), name, terms)


def clean_terms(options: TermsOptions) -> dict[str, float | None]:
    """Return the options with durations in seconds. Raises ValueError or TypeError, which names the bad value."""
    unknown = set(options) - TermsOptions.__optional_keys__
    if unknown:
        raise TypeError(f"A lock takes no option {', '.join(sorted(unknown))}.")
    return {option: None if value is None else clean_duration(value, option) for option, value in options.items()}


def _unprefixed(lease: Any, prefix: str) -> Any:
    if lease is None or not prefix:
        return lease
    return dataclasses.replace(lease, name=lease.name.removeprefix(prefix))


class _Claim:
    """One caller's wish for a lock, from the first try to the grant. All tries have the same owner, so that a grant
    whose reply was lost is found again."""

    def __init__(self, service: LocksService, settings: LockSettings, name: str, terms: dict[str, Any]) -> None:
        self.service = service
        self.store = settings.store
        self.name = name
        self.key = settings.prefix + name
        self.holder = settings.holder()
        self.owner = new_owner()
        self.terms = Terms(**{**terms, "ttl": terms.get("ttl") or settings.ttl})

    def take(self) -> LockGuard | None:
        sent = clock.now()
        try:
            fence = self.store.acquire(self.key, self.owner, self.terms.ttl, self.holder)
            if fence is None:
                return None
            guard = LockGuard(Grant(self.store, self.name, self.key, self.owner, self.holder, fence, sent), self.terms)
            if guard.lost:
                raise self.store.unavailable("acquire", self.name, self._too_slow(clock.now() - sent))
        except BaseException:
            self._give_back()  # it may have been granted although no answer came
            raise
        signals.lease_acquired.send_robust(type(self.service), alias=self.store.alias, name=self.name, guard=guard)
        return guard

    def take_within(self, wait: float) -> LockGuard:
        start = clock.now()
        guard = self.take()
        if guard is not None:
            return guard
        if self._held_by_caller():
            raise self._refusal(AlreadyHeld, waited=0.0)
        if wait > 0:
            guard = self._wait_until(start + wait)
            if guard is not None:
                return guard
        raise self._refusal(LockNotAcquired, waited=clock.now() - start if wait else 0.0)

    def _wait_until(self, deadline: float) -> LockGuard | None:
        expiry = -math.inf  # of the holder's lease, as far as is known
        with self.store.watch(self.key) as watch:
            while True:
                guard = self.take()
                now = clock.now()
                if guard is not None or now >= deadline:
                    return guard
                if expiry <= now:
                    lease = self.store.get(self.key)
                    expiry = now + lease.remaining if lease else now
                watch.wait(min(deadline - now, max(expiry - now, 0.001)))

    def _held_by_caller(self) -> bool:
        return held_by.get((self.store, self.key), ("", 0))[1] == threading.get_ident()

    def _give_back(self) -> None:
        try:
            self.store.release(self.key, self.owner)
        except StoreUnavailable:
            return  # the TTL will

    def _too_slow(self, took: float) -> str:
        return (
            f"it answered after {describe_duration(took)}, when the TTL of {describe_duration(self.terms.ttl)} "
            "was over; the lock was given back. Use a longer TTL, or find out why the store is slow."
        )

    def _refusal(self, kind: type[LockNotAcquired], waited: float) -> LockNotAcquired:
        try:
            lease = self.service.get(self.name)
        except StoreUnavailable:
            lease = None
        who = describe_lease(lease)
        if kind is AlreadyHeld:
            why = "The calling thread holds it already, and would wait for itself."
        elif waited:
            why = f"Gave up after waiting {describe_duration(waited)}."
        else:
            why = "Did not wait; pass wait= to do so."
        return kind(
            f"The lock {self.name!r} (store {self.store.alias!r}) {who}. {why}",
            name=self.name,
            alias=self.store.alias,
            lease=lease,
            waited=waited,
        )


class Lock:
    """A context manager that takes a lock. Made by `LocksService.lock`."""

    def __init__(self, service: LocksService, name: str, wait: float, terms: TermsOptions) -> None:
        clean_terms(terms)
        self.name = clean_name(name)
        self._service = service
        self._wait = None if wait == math.inf else wait
        self._terms = terms
        self._entered: dict[int, list[LockGuard]] = {}  # by thread, so that each entry finds its own guard

    def __enter__(self) -> LockGuard:
        guard = self._service.acquire(self.name, wait=self._wait, **self._terms)
        self._entered.setdefault(threading.get_ident(), []).append(guard)
        return guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = threading.get_ident()
        guards = self._entered[thread]
        guard = guards.pop()
        if not guards:
            del self._entered[thread]
        guard.__exit__(kind, error, trace)
