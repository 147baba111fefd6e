"""Locks of one store: what the application calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from threading import get_ident
from typing import Any, Literal, Never, Unpack, overload

from . import clock
from .blocks import Lock, LockMany
from .claims import Claim
from .decorators import Decorator, OnBusy, Skipped
from .exceptions import LeaseLost, LockNotAcquired
from .grants import Grant, Taker, Terms
from .guard import LockGuard
from .leader import Leader
from .options import (
    DecoratorOptions,
    HoldOptions,
    LockSettings,
    TakeOptions,
    Wish,
    clean_call,
    clean_flag,
    clean_options,
)
from .orders import is_task
from .oversight import Oversight
from .signatures import AsyncLocking, C, Locking, P, R, S, TaskT, X
from .values import (
    PAUSED,
    LeaseInfo,
    Seconds,
    clean_wait,
    template_of,
)


class LocksService(Oversight):
    """Take, look up and free the locks of one entry of ``LOCKS``. Settings are read at each call.

    Each call has an async twin, whose name begins with ``a``. All raise ValueError or TypeError for a bad name or
    duration, before anything else; `InvalidLockStore` if ``LOCKS`` is wrong; `StoreUnavailable` if the store cannot be
    asked.
    """

    def __repr__(self) -> str:
        return f"<LocksService {self.alias!r}>"

    def using(self, alias: str) -> LocksService:
        """Return the service of another entry of ``LOCKS``; one that does not exist is an error when it is used."""
        return LocksService(alias, self._settings)

    # Taking

    def try_acquire(self, name: str, **options: Unpack[TakeOptions]) -> LockGuard | None:
        """Take the lock if it is free, and return its guard; or ``None`` if somebody else holds it. Never waits.

        Options: those of `TakeOptions`.
        """
        return self._claim(*clean_call(name, options)).take()

    async def atry_acquire(self, name: str, **options: Unpack[TakeOptions]) -> LockGuard | None:
        """Do as `try_acquire`. If the task is cancelled, what the store has granted is given back."""
        return await self._claim(*clean_call(name, options), is_async=True).atake()

    def acquire(self, name: str, *, wait: Seconds | None = 0, **options: Unpack[TakeOptions]) -> LockGuard:
        """Take the lock and return its guard, waiting up to ``wait`` seconds (``None``: for ever) for it to be free.

        Options: those of `TakeOptions`. Raises `LockNotAcquired` if somebody else still holds it then, and
        `AlreadyHeld` at once if the calling thread itself does.
        """
        seconds = clean_wait(wait)
        return self._claim(*clean_call(name, options)).take_within(seconds)

    async def aacquire(self, name: str, *, wait: Seconds | None = 0, **options: Unpack[TakeOptions]) -> LockGuard:
        """Do as `acquire`; the wait is the event loop's, and `AlreadyHeld` is about the calling task."""
        seconds = clean_wait(wait)
        return await self._claim(*clean_call(name, options), is_async=True).atake_within(seconds)

    def lock(
        self, name: str, *, wait: Seconds | None = 0, enforce: bool = False, **options: Unpack[TakeOptions]
    ) -> Lock:
        """Return a block, for ``with`` or ``async with``, that takes the lock as `acquire` does.

        It enters with the guard, and releases on exit. A body that has outlived its lease ends in `LeaseLost`; with
        ``enforce`` it does so at its next query, as by `LockGuard.enforce`.
        """
        name, wish = clean_call(name, options)
        return Lock(name, clean_wait(wait), *self._takes(wish, enforce))

    def lock_many(
        self,
        names: Iterable[str],
        *,
        wait: Seconds | None = 0,
        enforce: bool = False,
        **options: Unpack[TakeOptions],
    ) -> LockMany:
        """Return a block, for ``with`` or ``async with``, that takes all of the locks or none, within ``wait`` seconds.

        It enters with a dict of the guards by name. ``enforce``: as `lock`, for each of them.
        """
        if isinstance(names, str | bytes):
            raise TypeError(f"lock_many takes several names, not one text: {names!r}.")
        cleaned = sorted({clean_call(name, options)[0] for name in names})
        wish = clean_options(options)
        return LockMany(cleaned, clean_wait(wait), wish.at_least, *self._takes(wish._replace(at_least=None), enforce))

    @overload
    def with_lock(
        self, target: str | None = None, /, *, on_busy: Literal["skip"] = "skip", **options: Unpack[DecoratorOptions]
    ) -> Locking[Skipped]: ...
    @overload
    def with_lock(
        self, target: str | None = None, /, *, on_busy: Literal["raise"], **options: Unpack[DecoratorOptions]
    ) -> Locking[Never]: ...
    @overload
    def with_lock(  # type: ignore[overload-overlap]  # what a coroutine function returns is an X, too
        self,
        target: str | None = None,
        /,
        *,
        on_busy: Callable[[LockNotAcquired], Coroutine[Any, Any, X]],
        **options: Unpack[DecoratorOptions],
    ) -> AsyncLocking[X]: ...
    @overload
    def with_lock(
        self,
        target: str | None = None,
        /,
        *,
        on_busy: Callable[[LockNotAcquired], X],
        **options: Unpack[DecoratorOptions],
    ) -> Locking[X]: ...
    @overload
    def with_lock(self, target: type[C], /) -> type[C]: ...
    @overload
    def with_lock(
        self, target: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | Skipped]]: ...
    @overload
    def with_lock(self, target: Callable[P, R], /) -> Callable[P, R | Skipped]: ...
    @overload
    def with_lock(self, target: classmethod[S, P, R], /) -> classmethod[S, P, R | Skipped]: ...
    @overload
    def with_lock(self, target: TaskT, /) -> TaskT: ...
    def with_lock(
        self,
        target: Any = None,
        /,
        *,
        name: Any = None,
        using: str | None = None,
        wait: Seconds | None = 0,
        on_busy: OnBusy = "skip",
        enforce: bool = False,
        **options: Unpack[TakeOptions],
    ) -> Any:
        """Decorate a function, coroutine function, method or management command: it runs only while it holds the lock.

        - ``name``: text; text with fields of the call's arguments (``"import:{tenant}"``); or, as ``name=``, a callable
          given the same arguments. Default: the function's module and qualified name.
        - ``using``: the alias in ``LOCKS``. ``wait``, ``enforce`` and the options: as `lock`.
        - ``on_busy``: what a call does when somebody else holds the lock. ``"skip"`` returns `SKIPPED` and logs who;
          ``"raise"`` raises `LockNotAcquired`; a callable is called with that exception, and its result returned.
        """
        clean_wait(wait)
        clean_flag(enforce, "enforce")
        clean_options(options)
        service = self if using is None else self.using(using)
        lock_options = {"wait": wait, **options, **({"enforce": True} if enforce else {})}
        if callable(target) or isinstance(target, staticmethod | classmethod) or is_task(target):
            return Decorator(service, name, on_busy, lock_options)(target)
        if target is not None and name is not None:
            raise TypeError(f"with_lock got two names: {target!r} and {name!r}.")
        return Decorator(service, target if name is None else name, on_busy, lock_options)

    def leader(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        max_hold: Seconds | None = None,
        on_lost: Callable[[LockGuard], object] | None = None,
    ) -> Leader:
        """Return a candidate for the lead that the lock ``name`` stands for; its `Leader.run` runs what a leader does.

        When a leader crashes, another follows within ``ttl``. Options: as `acquire`; ``max_hold`` is the longest term.
        """
        options = {"ttl": ttl, "max_hold": max_hold, "on_lost": on_lost}
        return Leader(self, clean_call(name, options)[0], options)

    # Taking over

    def adopt(self, name: str, owner: str, **options: Unpack[HoldOptions]) -> LockGuard:
        """Go on holding a lease that was taken elsewhere, and given up there by `LockGuard.detach`.

        Raises `LeaseLost` if it is not that owner's any more.
        """
        name, terms, settings = self._adoption(name, owner, options)
        key, sent = settings.prefix + name, clock.now()
        ours = settings.store.renew([(key, owner, terms.ttl)])
        lease = settings.store.get(key) if ours else None
        return self._adopted(name, owner, terms, settings, sent, lease, Taker.caller())

    async def aadopt(self, name: str, owner: str, **options: Unpack[HoldOptions]) -> LockGuard:
        """Do as `adopt`."""
        name, terms, settings = self._adoption(name, owner, options)
        key, sent = settings.prefix + name, clock.now()
        ours = await settings.store.see_through(settings.store.arenew([(key, owner, terms.ttl)]))
        lease = await settings.store.aget(key) if ours else None
        return self._adopted(name, owner, terms, settings, sent, lease, Taker.caller(is_async=True))

    def _adoption(self, name: str, owner: str, options: HoldOptions) -> tuple[str, Terms, LockSettings]:
        if not isinstance(owner, str) or owner in ("", PAUSED):
            raise TypeError("owner must be the text that LockGuard.detach() returned.")
        if "limit" in options:
            raise TypeError("adopt takes no limit: give it the name of the lease, such as 'name#0'.")
        name, wish = clean_call(name, options)
        settings = self._settings(self.alias)
        return name, wish.terms(settings), settings

    def _adopted(
        self,
        name: str,
        owner: str,
        terms: Terms,
        settings: LockSettings,
        sent: float,
        lease: LeaseInfo | None,
        taker: Taker,
    ) -> LockGuard:
        if lease is None or lease.owner != owner:
            raise LeaseLost(
                f"The lease of {name!r} (store {self.alias!r}) cannot be adopted: it is not that owner's any more.",
                name=name,
                alias=self.alias,
            )
        age = (lease.expires_at - lease.acquired_at).total_seconds() - lease.remaining
        key, template = settings.prefix + name, template_of(name)
        grant = Grant(settings.store, str(name), key, owner, lease.holder, lease.fence, sent, template)
        return LockGuard(grant, terms, taker, age=age)

    def _claim(self, name: str, wish: Wish, is_async: bool = False, enforce: bool = False) -> Claim:
        settings = self._settings(self.alias)
        terms, taker = wish.terms(settings, enforce), Taker.caller(is_async) if is_async else Taker(get_ident())
        return Claim(settings.store, name, settings.prefix, wish.limit, settings.holder(), terms, taker)

    def _takes(self, wish: Wish, enforce: bool) -> tuple[Any, Any]:
        clean_flag(enforce, "enforce")

        def take(name: str, wait: float) -> LockGuard:
            return self._claim(name, wish, enforce=enforce).take_within(wait)

        async def atake(name: str, wait: float) -> LockGuard:
            return await self._claim(name, wish, is_async=True, enforce=enforce).atake_within(wait)

        return take, atake
