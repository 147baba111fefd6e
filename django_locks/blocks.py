"""``with`` blocks that take locks: one, or several at once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Generic, TypeVar

from . import clock
from .guard import LockGuard
from .tasks import calling_task

T = TypeVar("T")

#: Takes the lock of that name, waiting so many seconds, or raises.
Take = Callable[[str, float], LockGuard]
ATake = Callable[[str, float], Awaitable[LockGuard]]


class Lock:
    """A block that takes a lock, enters with its guard and releases on exit. Made by `LocksService.lock`.

    It can be entered again and again, by many threads and tasks: each entry has a guard of its own.
    """

    def __init__(self, name: str, wait: float, take: Take, atake: ATake) -> None:
        self.name = name
        self._wait = wait
        self._take = take
        self._atake = atake
        self._guards: _Entries[LockGuard] = _Entries()

    def __enter__(self) -> LockGuard:
        return self._guards.push(_thread(), self._take(self.name, self._wait).__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guards.pop(_thread()).__exit__(kind, error, trace)

    async def __aenter__(self) -> LockGuard:
        task = calling_task()
        guard = await self._atake(self.name, self._wait)
        return self._guards.push(task, await guard.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._guards.pop(calling_task()).__aexit__(kind, error, trace)


class LockMany:
    """A block that takes several locks, all or none, and enters with a dict of their guards by name.

    They are taken in sorted order, so that two who want the same ones never wait for each other, and given back in
    reverse. Made by `LocksService.lock_many`.
    """

    def __init__(self, names: list[str], wait: float, at_least: float | None, take: Take, atake: ATake) -> None:
        self.names = names
        self._wait = wait
        self._at_least = at_least
        self._take = take  # without at_least: what is taken in vain is given back at once
        self._atake = atake
        self._stacks: _Entries[ExitStack] = _Entries()
        self._async_stacks: _Entries[AsyncExitStack] = _Entries()

    def __enter__(self) -> dict[str, LockGuard]:
        deadline = clock.now() + self._wait
        with ExitStack() as stack:
            guards = {
                name: stack.enter_context(self._take(name, max(0.0, deadline - clock.now()))) for name in self.names
            }
            self._stacks.push(_thread(), stack.pop_all())
        return self._all_taken(guards)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stacks.pop(_thread()).__exit__(kind, error, trace)

    async def __aenter__(self) -> dict[str, LockGuard]:
        task, deadline = calling_task(), clock.now() + self._wait
        async with AsyncExitStack() as stack:
            guards = {}
            for name in self.names:
                guard = await self._atake(name, max(0.0, deadline - clock.now()))
                guards[name] = await stack.enter_async_context(guard)
            self._async_stacks.push(task, stack.pop_all())
        return self._all_taken(guards)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._async_stacks.pop(calling_task()).__aexit__(kind, error, trace)

    def _all_taken(self, guards: dict[str, LockGuard]) -> dict[str, LockGuard]:
        for guard in guards.values():
            guard.keep_at_least(self._at_least)
        return guards


class _Entries(Generic[T]):
    """What was entered and not yet left, so that each thread or task of a shared block leaves its own."""

    def __init__(self) -> None:
        self._entered: dict[Hashable, list[T]] = {}

    def __len__(self) -> int:
        return len(self._entered)

    def push(self, who: Hashable, entry: T) -> T:
        self._entered.setdefault(who, []).append(entry)
        return entry

    def pop(self, who: Hashable) -> T:
        entries = self._entered[who]
        entry = entries.pop()
        if not entries:
            del self._entered[who]
        return entry


_thread = threading.get_ident
