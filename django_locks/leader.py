"""Leader election: of many processes the one that holds a lock leads, and another follows when it no longer does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from . import clock
from .commands import terminated_in_order, terminated_in_order_async
from .decorators import LockSource
from .exceptions import AlreadyHeld, LeaseLost, LockNotAcquired, StoreUnavailable
from .guard import LockGuard
from .logs import log_extra
from .values import Name

logger = logging.getLogger("django_locks")

T = TypeVar("T")

CANDIDACY = 1.0  # seconds: for so long a candidate waits for the lock before it looks whether it is to stop


class Leader:
    """One candidate for the lead that a lock stands for. Made by `LocksService.leader`.

    It leads from the moment it holds the lock until its work is done, the lease is lost, SIGTERM arrives or `stop` is
    called. A candidate runs once at a time; what it runs gets the guard of its lease.
    """

    def __init__(self, source: LockSource, name: str, options: dict[str, Any]) -> None:
        self.source = source
        self.name = name
        self._options = options
        self._on_lost = options.get("on_lost")
        self._guard: LockGuard | None = None
        self._stopped = False
        self._news: SimpleQueue[None] = SimpleQueue()  # a signal handler may put to it, but not set a threading.Event

    @property
    def leading(self) -> bool:
        """Does it lead, with no reason to step down? No I/O."""
        return self._guard is not None and not self._guard.lost and not self._stopped

    def wait(self, seconds: float) -> bool:
        """Sleep, and return whether it still leads; wakes up at once when it is to step down."""
        deadline = clock.now() + seconds
        while self.leading and (left := deadline - clock.now()) > 0:
            with suppress(Empty):
                self._news.get(timeout=left)
        return self.leading

    def stop(self) -> None:
        """Let `run` step down and return. May be called from any thread and from a signal handler."""
        self._stopped = True
        self._news.put(None)

    def run(self, work: Callable[[LockGuard], T]) -> T | None:
        """Call ``work(guard)`` each time this process comes to lead; return its result once it has ended in the lead.

        ``work`` lasts as long as it wants to lead: ``while leader.wait(5): …`` ends when it is to step down. After a
        `LeaseLost` that it let through or overlooked this process is a candidate again; any other exception ends the
        lead and is raised. Returns ``None`` after `stop`. A store that cannot be asked is asked again.

        SIGTERM raises SystemExit(143) in the main thread, so that ``finally`` blocks run under the lease, which is then
        released. Where somebody else handles SIGTERM, let that handler call `stop`.
        """
        with terminated_in_order():
            while True:
                with self._term(), ExitStack() as stack:
                    guard = self._elected(stack)
                    if guard is None:
                        return None
                    result = work(guard)
                    stack.close()
                    return result

    async def arun(self, work: Callable[[LockGuard], Awaitable[T]]) -> T:
        """Do as `run` with a coroutine function, which is cancelled when the lease is lost, and by SIGTERM.

        To stop it, cancel the task that awaits it.
        """
        with terminated_in_order_async():
            while True:
                with self._term():
                    async with AsyncExitStack() as stack:
                        result = await work(await self._aelected(stack))
                        await stack.aclose()
                        return result

    def _elected(self, stack: ExitStack) -> LockGuard | None:
        pauses = _pauses()
        while not self._stopped:
            try:
                return self._begin(stack.enter_context(self._lock(CANDIDACY)))
            except AlreadyHeld:
                raise
            except LockNotAcquired:
                continue
            except StoreUnavailable as fault:
                pause = self._unable(fault, pauses)
            with suppress(Empty):
                self._news.get(timeout=pause)
        return None

    async def _aelected(self, stack: AsyncExitStack) -> LockGuard:
        pauses = _pauses()
        while True:
            try:
                return self._begin(await stack.enter_async_context(self._lock(None)))
            except StoreUnavailable as fault:
                await asyncio.sleep(self._unable(fault, pauses))

    def _lock(self, wait: float | None) -> Any:
        return self.source.lock(Name(self.name, self.name), wait=wait, **{**self._options, "on_lost": self._lost})

    def _begin(self, guard: LockGuard) -> LockGuard:
        while not self._news.empty():
            self._news.get()  # of earlier terms
        self._guard = guard
        logger.info("Leads %r (fence %d).", self.name, guard.fence, extra=guard.log_extra())
        return guard

    @contextmanager
    def _term(self) -> Iterator[None]:
        try:
            yield
        except LeaseLost as loss:
            guard = loss.guard
            if guard is None or guard is not self._guard:
                raise
            logger.warning("Leads %r no more, and is a candidate again.", self.name, extra=guard.log_extra())
        finally:
            self._guard = None

    def _lost(self, guard: LockGuard) -> None:
        self._news.put(None)
        if self._on_lost is not None:
            self._on_lost(guard)

    def _unable(self, fault: StoreUnavailable, pauses: Iterator[float]) -> float:
        pause = next(pauses)
        logger.warning(
            "Cannot become the leader of %r, and tries again in %.1f s: %s",
            self.name,
            pause,
            fault,
            extra=log_extra(self.name, fault.alias, template=self.name),
        )
        return pause


def _pauses(first: float = 0.5, longest: float = 10.0) -> Iterator[float]:
    pause = first
    while True:
        yield pause
        pause = min(pause * 2, longest)
