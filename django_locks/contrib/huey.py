"""huey: a busy lock that cancels the task, or lets it run later."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from huey.exceptions import CancelExecution, RetryTask

from django_locks.exceptions import LockNotAcquired


def cancel(busy: LockNotAcquired) -> NoReturn:
    """End the task as canceled, without a retry: ``on_busy=cancel``."""
    raise CancelExecution(str(busy), retry=False)


def retry(delay: float | None = None) -> Callable[[LockNotAcquired], NoReturn]:
    """Run the task again, however many retries it has: ``on_busy=retry()``.

    ``delay``: seconds until then; default: when the holder's lease ends unless it is renewed.
    """

    def on_busy(busy: LockNotAcquired) -> NoReturn:
        wait = delay if delay is not None else busy.lease.remaining if busy.lease else 0
        raise RetryTask(str(busy), delay=wait)

    return on_busy
