"""One object for each event loop, closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed in its loop, or after it."""

    async def aclose(self) -> None:
        """Close, in its loop. May be asked again, and used afterwards, but then keeps nothing open."""

    def abandon(self) -> None:
        """Close without its loop, which is closed already."""


C = TypeVar("C", bound=Closable)


class PerLoop(Generic[C]):
    """Makes an object for each event loop that asks for one.

    Each is held by an asynchronous generator of its loop. `asyncio.run`, `asyncio.Runner` and all that is built on
    them close the generators of their loop at its end (``loop.shutdown_asyncgens()``), and one that is dropped earlier
    is closed in its loop: PEP 525. For a loop that was closed without that, the next object that is made cleans up.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        # No weak keys: connections refer to their loop, so it would never go away by itself.
        self._kept: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None, None]]] = {}

    def get(self) -> C:
        """Return the object of the running loop."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        return kept[0] if kept is not None else self._make_for(loop)

    def close(self) -> None:
        """Let go of all, from any thread: those of open loops are closed by these, as soon as they run."""
        self._abandon_closed()
        self._kept = {}

    def forget(self) -> None:
        """Start anew after a fork. To close anything would disturb the parent, whose sockets and selectors they are."""
        self._inherited = self._kept
        self._kept = {}

    def _make_for(self, loop: asyncio.AbstractEventLoop) -> C:
        self._abandon_closed()
        made = self._make()
        holder = _hold(made)
        _start(holder)
        self._kept[loop] = made, holder
        return made

    def _abandon_closed(self) -> None:
        for loop in [loop for loop in list(self._kept) if loop.is_closed()]:
            kept = self._kept.pop(loop, None)  # None: another thread was faster
            if kept is not None:
                kept[0].abandon()


async def _hold(made: Closable) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await made.aclose()


def _start(generator: AsyncGenerator[None, None]) -> None:
    """Run it up to its yield, which takes no await, and makes it known to the running loop."""
    try:
        generator.asend(None).send(None)
    except StopIteration:
        return
