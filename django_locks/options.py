"""What a caller may ask of a lock, and what he gets where he does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from .grants import Terms
from .stores.base import BaseStore
from .values import NAME_LENGTH, Seconds, clean_duration, clean_name

if TYPE_CHECKING:
    from .guard import LockGuard

LARGEST_LIMIT = 1000


class LockSettings(NamedTuple):
    """One entry of ``LOCKS``, ready to use."""

    store: BaseStore
    ttl: float
    renew: bool
    prefix: str  #: what precedes every name in the store: ``"stg:"``, or nothing
    holder: Callable[[], str]
    history: float | None = None  #: seconds to keep the record of a hold, or None: keep none


class HoldOptions(TypedDict, total=False):
    """On what terms a lock is held. Durations in seconds (int, float) or timedelta; ``None``: the default.

    - ``ttl``: until a crashed holder's lock is free again. Default: ``TTL`` of ``LOCKS``.
    - ``renew``: keep the lease alive while its guard lives. Default: ``RENEW`` of ``LOCKS``.
    - ``at_least``: released earlier than so long after the grant, the name stays taken until then.
    - ``max_hold``: renew no longer than that, so that a job that hangs does not keep its lock for ever.
    - ``on_lost``: called with the guard when its lease is lost, once, from another thread.
    """

    ttl: Seconds | None
    renew: bool | None
    at_least: Seconds | None
    max_hold: Seconds | None
    on_lost: Callable[[LockGuard], object] | None


class TakeOptions(HoldOptions, total=False):
    """How a lock is taken: the `HoldOptions`, and

    - ``limit``: up to so many may hold the lock at once; each holds a lease of its own, named ``name#0``, ``name#1``…
    """

    limit: int | None


class DecoratorOptions(TakeOptions, total=False):
    """What `LocksService.with_lock` takes besides ``on_busy``."""

    name: str | Callable[..., str] | None
    using: str | None
    wait: Seconds | None
    enforce: bool


class Wish(NamedTuple):
    """The same, cleaned."""

    ttl: float | None = None
    renew: bool | None = None
    at_least: float | None = None
    max_hold: float | None = None
    on_lost: Callable[[LockGuard], object] | None = None
    limit: int | None = None

    def terms(self, settings: LockSettings, enforce: bool = False) -> Terms:
        if self is DEFAULTS and not enforce:
            return _default_terms(settings.ttl, settings.renew)
        return Terms(
            self.ttl or settings.ttl,
            settings.renew if self.renew is None else self.renew,
            self.at_least,
            self.max_hold,
            self.on_lost,
            enforce,
        )


@functools.lru_cache
def _default_terms(ttl: float, renew: bool) -> Terms:
    return Terms(ttl, renew)


def clean_call(name: object, options: Any) -> tuple[str, Wish]:
    """Return what a caller asks for, or raise TypeError or ValueError that says what is wrong with it. No I/O."""
    wish = clean_options(options) if options else DEFAULTS
    cleaned = clean_name(name)
    if wish.limit is not None and len(f"{cleaned}#{wish.limit - 1}") > NAME_LENGTH:
        raise ValueError(f"With limit={wish.limit}, a lock's name may have {NAME_LENGTH} characters with its place.")
    return cleaned, wish


def clean_options(options: Any) -> Wish:
    """Do as `clean_call`, for the options alone."""
    unknown = set(options) - set(Wish._fields)
    if unknown:
        raise TypeError(f"A lock takes no option {', '.join(sorted(unknown))}; it takes {', '.join(Wish._fields)}.")
    return Wish(
        **{
            option: None if value is None else _CLEANERS.get(option, clean_duration)(value, option)
            for option, value in options.items()
        }
    )


def clean_flag(value: object, option: str) -> bool:
    """Return a true or a false; anything else is a TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{option} must be True or False, not {value!r}.")
    return value


def _clean_callable(value: object, option: str) -> object:
    if not callable(value):
        raise TypeError(f"{option} must be a callable that takes the guard, not {value!r}.")
    return value


def _clean_limit(value: object, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{option} must be a whole number, not {value!r}.")
    if not 1 <= value <= LARGEST_LIMIT:
        raise ValueError(f"{option} must be 1 to {LARGEST_LIMIT}, not {value!r}.")
    return value


DEFAULTS = Wish()
_CLEANERS: dict[str, Callable[[Any, str], Any]] = {
    "renew": clean_flag,
    "on_lost": _clean_callable,
    "limit": _clean_limit,
}
