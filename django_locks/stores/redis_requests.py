"""How the Redis store asks: over links that are opened when they are needed, and once more where one was dead."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from django.views.decorators.debug import sensitive_variables

from django_locks.exceptions import InvalidLockStore
from django_locks.tasks import see_through_here

from .base import BaseStore
from .per_loop import PerLoop
from .redis_wire import Call

if TYPE_CHECKING:
    from .redis_async import AsyncLink
    from .redis_client import Address, Connector
    from .redis_links import Link

T = TypeVar("T")

SECOND_TRY = 1.0  # seconds: a connection that was dead already is noticed at once; what took longer is an outage


class RedisRequests(BaseStore):
    """One link for all threads, and one for each event loop."""

    def __init__(self, alias: str, location: Any, key_prefix: str, connector: Connector) -> None:
        super().__init__(alias, location, key_prefix)
        self._connector = connector
        self._link: Link | None = None
        self._opening = threading.Lock()
        self._inherited: list[Link] = []
        self._async_links: PerLoop[AsyncLink] = PerLoop(connector.open_async)
        _stores.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r} at {self.servers()}>"

    def servers(self) -> list[Address]:
        """Return ``(host, port, db)`` or ``(path, db)`` of each server that LOCATION names and a lock asks. No I/O."""
        return self._connector.servers()

    def close(self) -> None:
        with self._opening:
            link, self._link = self._link, None
        if link is not None:
            link.close()
        self._async_links.close()

    def see_through(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return see_through_here(coroutine)

    @sensitive_variables()  # the driver's functions have the owner among their arguments
    def _run(self, verb: str, name: str, call: Call) -> Any:
        started = time.monotonic()
        try:
            return (self._link or self._open()).run(call)
        except Exception as error:
            return self._run_again(verb, name, lambda link: link.run(call), error, started)

    @sensitive_variables()
    def _run_all(self, verb: str, name: str, calls: Sequence[Call]) -> list[Any]:
        started = time.monotonic()
        try:
            return (self._link or self._open()).run_all(calls)
        except Exception as error:
            replies: list[Any] = self._run_again(verb, name, lambda link: link.run_all(calls), error, started)
            return replies

    def _run_again(self, verb: str, name: str, attempt: Callable[[Link], Any], error: Exception, started: float) -> Any:
        self._check_again(verb, name, error, started)
        try:
            return attempt(self._link or self._open())
        except Exception as second:
            raise self.unavailable(verb, name, second) from second

    def _check_again(self, verb: str, name: str, error: Exception, started: float) -> None:
        """Allow one more try where a connection was dead (a restarted server, a forgetful firewall), else raise."""
        if not isinstance(error, self._connector.broken) or time.monotonic() - started > SECOND_TRY:
            raise self.unavailable(verb, name, error) from error

    async def _arun(self, verb: str, name: str, call: Call) -> Any:
        link, started = self._async_links.get(), time.monotonic()
        try:
            return await link.run(call)
        except Exception as error:
            return await self._arun_again(verb, name, lambda link: link.run(call), error, started)

    async def _arun_all(self, verb: str, name: str, calls: Sequence[Call]) -> list[Any]:
        link, started = self._async_links.get(), time.monotonic()
        try:
            return await link.run_all(calls)
        except Exception as error:
            replies: list[Any] = await self._arun_again(verb, name, lambda link: link.run_all(calls), error, started)
            return replies

    async def _arun_again(
        self, verb: str, name: str, attempt: Callable[[AsyncLink], Awaitable[Any]], error: Exception, started: float
    ) -> Any:
        self._check_again(verb, name, error, started)
        try:
            return await attempt(self._async_links.get())
        except Exception as second:
            raise self.unavailable(verb, name, second) from second

    def _open(self) -> Link:
        with self._opening:
            if self._link is None:
                self._link = self._connector.open()
            return self._link

    def _forget_parent(self) -> None:
        # Closed by its destructor it could wait for ever: for a lock of the pool that a thread of the parent held.
        if self._link is not None:
            self._inherited.append(self._link)
        self._link, self._opening = None, threading.Lock()
        self._async_links.forget()


def make_connector(alias: str, location: object, **settings: Any) -> Connector:
    """Return the checked settings. Raises `InvalidLockStore`, also where the driver is not installed."""
    try:
        from .redis_client import Connector
    except ImportError as error:
        raise InvalidLockStore(
            f'LOCKS[{alias!r}] needs the package redis: pip install "django-lease-locks[redis]"', alias=alias
        ) from error
    return Connector(alias, location, **settings)


_stores: weakref.WeakSet[RedisRequests] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
