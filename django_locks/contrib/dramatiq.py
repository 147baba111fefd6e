"""dramatiq: a busy lock that lets the message come again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from dramatiq.errors import Retry

from django_locks.exceptions import LockNotAcquired


def retry(delay: float | None = None) -> Callable[[LockNotAcquired], NoReturn]:
    """Let the message come again, which counts as one of its ``max_retries``: ``on_busy=retry()``.

    ``delay``: seconds until then; default: when the holder's lease ends unless it is renewed.
    """

    def on_busy(busy: LockNotAcquired) -> NoReturn:
        wait = delay if delay is not None else busy.lease.remaining if busy.lease else 0
        raise Retry(str(busy), delay=int(wait * 1000))

    return on_busy
