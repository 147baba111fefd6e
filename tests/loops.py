"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    async def limited(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(60):
            await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(limited(*args, **kwargs))

    return run


async def eventually(condition: Callable[[], Any], seconds: float = 10) -> None:
    """Wait until a condition, or the answer of one that is a coroutine, is true."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        met = condition()
        if await met if asyncio.iscoroutine(met) else met:
            return
        assert asyncio.get_running_loop().time() < deadline, "waited too long"
        await asyncio.sleep(0.01)


class Holder:
    """Another task that holds a lock until it is told to stop."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.held, self.stop = asyncio.Event(), asyncio.Event()
        self.guard: Any = None

    async def _hold(self) -> None:
        async with self.lock as self.guard:
            self.held.set()
            await self.stop.wait()

    async def __aenter__(self) -> Holder:
        self.task = asyncio.ensure_future(self._hold())
        held = asyncio.ensure_future(self.held.wait())
        await asyncio.wait([self.task, held], return_when=asyncio.FIRST_COMPLETED)
        held.cancel()
        return self

    async def __aexit__(self, *args: object) -> None:
        self.stop.set()
        await self.task
