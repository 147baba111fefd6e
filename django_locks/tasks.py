"""What asyncio does not bring along: an await that is seen through, and a body that a loss ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from asgiref.sync import AsyncToSync

T = TypeVar("T")


def is_called_by_sync_code() -> bool:
    """Does a thread wait in ``async_to_sync`` for the calling task, and run what the task sends to synchronous code?"""
    return getattr(AsyncToSync.executors, "current", None) is not None


def calling_task() -> asyncio.Task[Any]:
    """Return the task of the caller; without one, which could be told of a loss, raise RuntimeError."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("Use `async with` on a lock inside of a task.")
    return task


async def see_through(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await to the end even if the calling task is cancelled meanwhile, and only then raise the cancellation.

    A request to a store that is on its way cannot be called back: whether it took effect is known when it answers.
    """
    task = asyncio.get_running_loop().create_task(coroutine)
    try:
        return await _Uncancelled(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as forgotten
        raise


class see_through_here(Generic[T]):  # noqa: N801  # it is awaited like the function above
    """Do as `see_through` without a task, which takes two rounds of the event loop more, and half as long as Redis.

    For coroutines in which nobody cancels the running task as `asyncio.timeout` does: that would not be heard either.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, None, T]:
        cancelled: asyncio.CancelledError | None = None
        error: BaseException | None = None
        while True:
            try:
                awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                if cancelled is not None:
                    raise cancelled from None
                return end.value  # type: ignore[no-any-return]
            except Exception:
                if cancelled is not None:
                    raise cancelled from None
                raise
            error = None
            try:
                yield awaited if awaited is None else _Uncancelled(awaited)
            except asyncio.CancelledError as cancellation:
                if awaited is not None and awaited.cancelled():
                    error = cancellation  # of what was awaited
                else:
                    cancelled = cancellation
            except BaseException as other:
                error = other


class _Uncancelled(Generic[T]):
    """Waits for a future as awaiting it does, but never cancels it.

    `asyncio.Task.cancel` asks what its task waits for to be cancelled. If that declines, the task goes on waiting, and
    is cancelled when the wait is over. `asyncio.shield` would need a round of the event loop more.
    """

    _asyncio_future_blocking = True  # what makes it a future to asyncio.isfuture(), and one that is awaited to a task

    def __init__(self, future: asyncio.Future[T]) -> None:
        future._asyncio_future_blocking = False
        self.get_loop = future.get_loop
        self.result = future.result
        self.cancelled = future.cancelled
        self.add_done_callback = future.add_done_callback
        self.remove_done_callback = future.remove_done_callback

    def __await__(self) -> Generator[Any, None, T]:
        yield self
        return self.result()

    def cancel(self, msg: object = None) -> bool:
        return False


class CancelOnLoss:
    """Cancels the task that entered it when told to from any thread, as `asyncio.timeout` does when time is up."""

    def __init__(self) -> None:
        self._task = calling_task()
        self._loop = asyncio.get_running_loop()
        self._cancelling = self._task.cancelling()
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

    def leave(self, error: BaseException | None) -> bool:
        """Return whether ``error`` is the cancellation made here, and none from elsewhere has come as well."""
        self._inside = False
        if not self._fired:
            return False
        # What was fired has reached the body: a task is cancelled only while it waits, and hears of it there.
        return self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError)
