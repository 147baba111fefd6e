"""Other owners than the test itself: threads of their own, and what they need to wait for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django_locks import LockGuard, LocksService, conf, locks
from django_locks.stores.base import BaseStore

LONG = os.environ.get("LONG") == "1"


def store(alias: str = "default") -> BaseStore:
    return conf.entries(alias).store


def eventually(condition: Callable[[], Any], within: float = 10.0) -> Any:
    """Return the first true answer; fail after so many seconds."""
    deadline = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {within} s"
        time.sleep(0.01)
    return answer


class Actor(threading.Thread):
    """Another thread that makes one call. ``result()`` waits for what it returned, or raises what it raised."""

    def __init__(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(daemon=True)
        self._call = lambda: call(*args, **kwargs)
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            for alias in conf.entries:
                store(alias).leave_thread()

    def result(self, within: float = 30.0) -> Any:
        self.join(within)
        assert not self.is_alive(), f"still busy after {within} s"
        if self._error is not None:
            raise self._error
        return self._result


def elsewhere(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make the call in a thread of its own, which holds nothing."""
    return Actor(call, *args, **kwargs).result()


@contextmanager
def held_elsewhere(
    name: str, seconds: float | None = None, service: LocksService = locks, **terms: Any
) -> Iterator[LockGuard]:
    """Let another thread hold the lock, for so many seconds or to the end of the block."""
    end, taken, guards = threading.Event(), threading.Event(), []

    def hold() -> None:
        try:
            guards.append(service.acquire(name, **terms))
        finally:
            taken.set()
        end.wait(seconds)
        guards[0].release()

    actor = Actor(hold)
    assert taken.wait(10)
    try:
        yield guards[0]
    finally:
        end.set()
        actor.result()
