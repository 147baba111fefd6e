"""What a guard is made of: on what terms a lease is held, what the store has granted, and who took it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .stores.base import BaseStore

if TYPE_CHECKING:
    from .guard import LockGuard


class Terms(NamedTuple):
    """On what terms a lease is held. Durations in seconds."""

    ttl: float
    renew: bool = True
    at_least: float | None = None
    max_hold: float | None = None
    on_lost: Callable[[LockGuard], object] | None = None
    enforce: bool = False


class Grant(NamedTuple):
    """What the store has granted, and to whom."""

    store: BaseStore
    name: str  #: as the caller wrote it
    key: str  #: as it is stored, with the prefix
    owner: str
    holder: str
    fence: int
    sent: float  #: the holder's clock before the request was sent: the lease is counted from there
    template: str = ""  #: what the name was made from


class Taker(NamedTuple):
    """Who took a lock: whoever is refused one of its own must not wait for itself."""

    thread: int
    task: asyncio.Task[object] | None = None

    @classmethod
    def caller(cls, is_async: bool = False) -> Taker:
        return cls(threading.get_ident(), asyncio.current_task() if is_async else None)
