"""Who in this process waits for which name of a store: first come, first served.

Only the first waiter of a name looks after it; the others sleep until it is their turn. It is woken when the name may
be free: by a release in this process, and by the store where that can push. Otherwise, and while a push is not to be
had, it looks again after a pause.

The pause depends on the age of the lease that is in the way, and not on how long the waiter has waited, so that old
waiters and new ones, in whatever process, look as often as one another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from django_locks import chance
from django_locks.values import LeaseInfo

from .rivals import Rivals

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.25
SHORTEST_LATER = 0.05  # after the first few looks: at most twenty a second
FEW = 4
PAUSE_BY_AGE = 1 / 3  # of the lease that is in the way
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0  # seconds between two tries to connect for pushes
LONGEST_SLEEP = 3600.0  # threads and event loops know no longer one; whoever wakes looks, and sleeps again


class Push(Protocol):
    """Where a store pushes from. It calls `Waiters.wake` when a name may be free."""

    def want(self, name: str) -> None:
        """Begin to watch the name, without waiting until that works. Wakes the waiter when it does."""

    def unwant(self, name: str) -> None:
        """Watch it no more."""

    def is_watching(self, name: str) -> bool:
        """Will a release from now on be pushed?"""


def keep_listening(listen: Callable[[], None], lose: Callable[[], None]) -> None:
    """Listen to a store until nobody waits any more, and begin again, after a pause, when that fails in any way.

    Meanwhile waiters look by themselves: ``lose`` tells them to.
    """
    pause = FIRST_RETRY
    while True:
        began = time.monotonic()
        try:
            return listen()
        except Exception:
            lose()
        pause = FIRST_RETRY if time.monotonic() - began > LONGEST_RETRY else min(pause * 2, LONGEST_RETRY)
        time.sleep(pause)


class Waiters:
    """The waiters of one store, by name."""

    def __init__(self) -> None:
        self.push: Push | None = None
        self.rivals = Rivals()
        self._queues: dict[str, deque[Watch]] = {}
        self._turn = threading.RLock()
        _all.add(self)

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, name: object) -> bool:
        return name in self._queues

    def count(self, name: str) -> int:
        """Return how many of this process wait for the name."""
        return len(self._queues.get(name, ()))

    def watch(self, name: str) -> Watch:
        """Return a place in the queue for the name: a context manager."""
        return Watch(self, name)

    def released(self, name: str) -> None:
        """Wake the first waiter of a name that this process has given back, unless the store does.

        A push reaches all processes at the same moment. Whoever was woken here would always be the first.
        """
        if not self.is_pushed(name):
            self.wake(name)

    def wake(self, name: str) -> None:
        """Let the first waiter of the name look, as it may be free."""
        if name in self._queues:
            with self._turn:
                queue = self._queues.get(name)
                if queue:
                    queue[0].wake()

    def join(self, watch: Watch) -> None:
        with self._turn:
            queue = self._queues.setdefault(watch.name, deque())
            queue.append(watch)
            if len(queue) == 1 and self.push is not None:
                self.push.want(watch.name)

    def leave(self, watch: Watch) -> None:
        """Leave the queue, and pass on what the waiter may have been woken for."""
        with self._turn:
            queue = self._queues.get(watch.name)
            if queue is None or watch not in queue:  # a forked child's
                return
            was_first = queue[0] is watch
            queue.remove(watch)
            if not queue:
                del self._queues[watch.name]
                if self.push is not None:
                    self.push.unwant(watch.name)
            elif was_first:
                queue[0].wake()

    def is_first(self, watch: Watch) -> bool:
        queue = self._queues.get(watch.name)
        return not queue or queue[0] is watch

    def is_pushed(self, name: str) -> bool:
        return self.push is not None and self.push.is_watching(name)

    def forget(self) -> None:
        """Forget the parent's waiters, in a forked child."""
        self._queues = {}
        self._turn = threading.RLock()


_all: weakref.WeakSet[Waiters] = weakref.WeakSet()


def _forget_parent() -> None:
    for waiters in list(_all):
        waiters.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


class Watch:
    """One waiter's place in the queue for a name."""

    def __init__(self, waiters: Waiters, name: str) -> None:
        self.name = name
        self._waiters = waiters
        self._looks = 0
        self._fence: int | None = None  # of the lease that was in the way
        self._lost = 0  # to rivals, so many times
        self._woken = threading.Event()
        self._async_woken: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __enter__(self) -> Self:
        self._waiters.join(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiters.leave(self)

    @property
    def is_first(self) -> bool:
        """Is it this one's turn to look after the name?"""
        return self._waiters.is_first(self)

    def wake(self) -> None:
        """Let `wait` return, from any thread."""
        self._woken.set()
        if self._async_woken is not None:
            loop, event = self._async_woken
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

    def wait(self, timeout: float, lease: LeaseInfo | None = None) -> bool:
        """Wait at most ``timeout`` seconds, and return whether it is time to ask for the name.

        It is when the name may be free: the waiter was woken, ``lease``, which is in the way, has expired, or the time
        is over. False: a pause has passed, and it is worth looking whether the lease is still there.
        """
        longest, pause = self._longest(timeout, lease)
        woken = self._woken.wait(min(longest, pause, LONGEST_SLEEP))
        self._woken.clear()
        if woken and (lag := self._lag()):
            time.sleep(lag)
        return woken or longest <= min(pause, LONGEST_SLEEP)

    async def async_wait(self, timeout: float, lease: LeaseInfo | None = None) -> bool:
        """Do as `wait`, without a thread."""
        longest, pause = self._longest(timeout, lease)
        event = asyncio.Event()
        self._async_woken = asyncio.get_running_loop(), event
        if self._woken.is_set():
            event.set()
        try:
            async with asyncio.timeout(min(longest, pause, LONGEST_SLEEP)):
                await event.wait()
        except TimeoutError:
            return longest <= min(pause, LONGEST_SLEEP)
        finally:
            self._async_woken = None
            self._woken.clear()
        if lag := self._lag():
            await asyncio.sleep(lag)
        return True

    def _lag(self) -> float:
        """Return how long to leave the name to rivals, now that it may be free."""
        return self._waiters.rivals.lag(self.name, self._lost)

    def _longest(self, timeout: float, lease: LeaseInfo | None) -> tuple[float, float]:
        """Return how long to wait for the time to ask, and how long for the next look."""
        if not self.is_first:
            return timeout, LONGEST_SLEEP
        if lease is not None:
            self._note(lease)
            timeout = min(timeout, max(lease.remaining, 0.001))
        if self._waiters.is_pushed(self.name):
            return timeout, LONGEST_SLEEP
        return timeout, self._pause(lease)

    def _note(self, lease: LeaseInfo) -> None:
        if self._fence not in (None, lease.fence):
            self._lost += 1
            self._waiters.rivals.note(self.name)
        self._fence = lease.fence

    def _pause(self, lease: LeaseInfo | None) -> float:
        self._looks += 1
        age = 0.0 if lease is None else (lease.expires_at - lease.acquired_at).total_seconds() - lease.remaining
        if lease is None and self._looks > FEW:  # several leases would do: each look asks for all of them
            age = LONGEST_PAUSE / PAUSE_BY_AGE
        shortest = SHORTEST_PAUSE if self._looks <= FEW else SHORTEST_LATER
        pause = min(max(age * PAUSE_BY_AGE, shortest), LONGEST_PAUSE)
        return pause * chance.uniform(0.75, 1.25)
