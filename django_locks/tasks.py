"""What asyncio does not bring along: an await that is seen through, and a body that a loss ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from asgiref.sync import AsyncToSync

T = TypeVar("T")


def is_called_by_sync_code() -> bool:
    """Does a thread wait in ``async_to_sync`` for the calling task, and run what the task sends to synchronous code?"""
    return getattr(AsyncToSync.executors, "current", None) is not None


async def see_through(awaitable: Awaitable[T]) -> T:
    """Await to the end even if the calling task is cancelled meanwhile, and only then raise the cancellation.

    A request to a store that is on its way cannot be called back: whether it took effect is known when it answers.
    """
    task = asyncio.ensure_future(awaitable)
    cancellation = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancellation = error
        except BaseException:  # noqa: S112 - the task's own, raised below
            continue
    if cancellation is not None:
        task.exception()  # looked at, so that it is not reported as forgotten
        raise cancellation
    return task.result()


class CancelOnLoss:
    """Cancels the task that entered it when told to from any thread, as `asyncio.timeout` does when time is up."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("Use `async with` on a lock inside of a task.")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._cancelling = task.cancelling()
        self._inside = True
        self._fired = False

    def fire(self) -> None:
        """Cancel the body, unless it has been left."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the body with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._inside:
            self._fired = True
            self._task.cancel()

    async def leave(self, error: BaseException | None) -> bool:
        """Return whether ``error`` is the cancellation made here, and none from elsewhere has come as well."""
        self._inside = False
        if not self._fired:
            return False
        ours = isinstance(error, asyncio.CancelledError)
        if not ours:  # the body ended before it was told: take back what its next await would raise
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return self._task.uncancel() <= self._cancelling and ours
