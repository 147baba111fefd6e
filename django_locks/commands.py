"""The edges of a management command that runs under a lock: exit codes, SIGTERM, a line for the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from .exceptions import LockError

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

logger = logging.getLogger("django_locks")

RELEASE_TIME = 5.0  # seconds for the releases after a SIGTERM
EXIT_TERMINATED = 128 + signal.SIGTERM


def command_of(args: tuple[Any, ...]) -> BaseCommand | None:
    """Return the command whose ``handle`` is called with these arguments, or ``None`` for another function."""
    management = sys.modules.get("django.core.management.base")  # where no command ran, there is none to find
    if management is None or not args or not isinstance(args[0], management.BaseCommand):
        return None
    command: BaseCommand = args[0]
    return command


@contextlib.contextmanager
def edges(command: BaseCommand | None) -> Iterator[Callable[[], None]]:
    """Give a lock's error that leaves the command the exit status of its kind, and let SIGTERM unwind the command.

    Enters with what to call when the body has ended and the release begins.
    """
    if command is None:
        yield _no_hurry
        return
    with terminated_in_order() as hurry:
        try:
            yield hurry
        except LockError as error:
            raise _command_error(error) from error


@contextlib.contextmanager
def terminated_in_order() -> Iterator[Callable[[], None]]:
    """Let the first SIGTERM raise SystemExit, so that ``finally`` blocks run and locks are released; exit status 143.

    Enters with what to call when only releases are left: if there was a SIGTERM, a store that hangs then keeps the
    process for some seconds, and not for ever. A handler that somebody else has installed is left alone, and so is any
    thread but the main one.
    """
    if not _may_handle_sigterm():
        yield _no_hurry
        return
    last_resort = threading.Timer(RELEASE_TIME, _end_at_once)
    last_resort.daemon = True
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield lambda: last_resort.start() if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN else None
    finally:
        last_resort.cancel()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _no_hurry() -> None:
    """The body goes on, or nobody has asked the process to end."""


def _end_at_once() -> None:
    logger.warning("SIGTERM: a lock store has not answered in time, so its lock is free when its TTL has run out")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(EXIT_TERMINATED)


@contextlib.contextmanager
def terminated_in_order_async() -> Iterator[None]:
    """Do as `terminated_in_order`: the running task is cancelled, and the block it is in raises SystemExit."""
    if not _may_handle_sigterm():
        yield
        return
    loop, task, terminated = asyncio.get_running_loop(), asyncio.current_task(), []

    def terminate() -> None:
        terminated.append(task and task.cancel())

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise SystemExit(EXIT_TERMINATED) from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _may_handle_sigterm() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break off the releases that the first one began
    raise SystemExit(EXIT_TERMINATED)


def _command_error(error: LockError) -> LockError:
    """Return the same error as one that is a CommandError too."""
    twin = _command_error_type(type(error))(str(error))
    twin.__dict__.update({**error.__dict__, "returncode": error.exit_code})
    return twin


def _command_error_type(kind: type[LockError]) -> type[LockError]:
    from django.core.management.base import CommandError

    return type(kind.__name__, (kind, CommandError), {"__module__": kind.__module__, "__doc__": kind.__doc__})
