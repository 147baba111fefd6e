"""Writes records in a thread of its own, in order and in batches, so that nobody who leaves one has to wait."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .stores.base import here

logger = logging.getLogger("django_locks")

T = TypeVar("T")

MOST = 10_000  # records that may wait; more than that are dropped, not the process' memory filled
BATCH = 500
NAP = 5.0  # seconds without a record until the thread ends
AT_EXIT = 2.0  # seconds to write what is left at the exit of the interpreter


class Recorder(Generic[T]):
    """``write`` is called with a list of records, and may raise: that is logged, and its records are gone."""

    def __init__(self, write: Callable[[list[T]], None]) -> None:
        self._write = write
        self._exiting = self._running = self._busy = False
        self._waiting: deque[T] = deque()
        self._dropped = 0
        self._changed = threading.Condition()  # re-entrant, since a signal handler may release a lock
        _recorders.add(self)

    def put(self, record: T) -> None:
        """Leave a record. At the exit of the interpreter, when there are no threads any more, writes it at once."""
        if self._exiting:
            self._write_quietly([record])
            return
        with self._changed:
            if len(self._waiting) >= MOST:
                self._dropped += 1
                return
            self._waiting.append(record)
            self._changed.notify_all()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="django_locks recorder", daemon=True).start()

    def flush(self, timeout: float = AT_EXIT) -> bool:
        """Wait until all that was left has been written; return False if that takes longer than so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def end(self) -> None:
        """Write what is left, at the exit of the interpreter."""
        self.flush()
        self._exiting = True

    def _run(self) -> None:
        here.own = "history"
        while batch := self._next():
            self._write_quietly(batch)

    def _next(self) -> list[T]:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._waiting, NAP):
                self._running = False
                return []
            self._busy = True
            if self._dropped:
                logger.warning("%d records of the history of locks were dropped: too many at once.", self._dropped)
                self._dropped = 0
            return [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]

    def _write_quietly(self, batch: list[T]) -> None:
        try:
            self._write(batch)
        except Exception as error:
            logger.warning("%d records of the history of locks could not be written: %s", len(batch), error)

    def forget_parent(self) -> None:
        """Begin anew, in a forked child."""
        self.__init__(self._write)  # type: ignore[misc]


_recorders: weakref.WeakSet[Recorder[Any]] = weakref.WeakSet()


def _end() -> None:
    for recorder in list(_recorders):
        recorder.end()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.forget_parent()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
