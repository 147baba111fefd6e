"""A child process in a process group of its own, which gets the signals of this one and the terminal."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal

#: What would end this process, and is the child's to answer.
FORWARDED = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
HAS_GROUPS = hasattr(os, "killpg")

Event = Literal["ended", "stopped", "lost"]


class Child:
    """One run of a program. Its group ends with it: what it has left in there is terminated, too."""

    def __init__(self, argv: Sequence[str], grace: float) -> None:
        self._argv = argv
        self._grace = grace
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()  # whose put() may interrupt its get()
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def run(self) -> int:
        """Run to the end and return the exit code, negative for a signal. Raises OSError if it cannot be started."""
        options: dict[str, Any] = {"process_group": 0} if HAS_GROUPS else {}
        with _handled_by(self._forward):
            self._process = process = subprocess.Popen(self._argv, **options)  # noqa: S603
            for number in self._early:
                self._signal(number)
            with _Terminal(process.pid) as terminal:
                threading.Thread(target=self._watch, args=[process], daemon=True).start()
                self._follow(terminal)
            self._end_group()
        return process.returncode

    def stop(self) -> None:
        """Terminate it, and kill it if it has not ended after the grace time. For any thread; returns at once."""
        self._events.put("lost")

    def _follow(self, terminal: _Terminal) -> None:
        timeout = None
        while True:
            try:
                event = self._events.get(timeout=timeout)
            except queue.Empty:
                self._signal(signal.SIGKILL)
                timeout = None
                continue
            if event == "ended":
                return
            if event == "stopped":
                terminal.stop_with_child()
            else:
                self._signal(signal.SIGTERM)
                self._signal(signal.SIGCONT)  # a stopped one would never know
                timeout = self._grace

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        if hasattr(os, "waitid"):
            while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT).si_code == os.CLD_STOPPED:  # type: ignore[union-attr]
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
                self._events.put("stopped")
        process.wait()
        self._events.put("ended")

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._signal(number)

    def _end_group(self) -> None:
        if not self._signal(signal.SIGTERM, ended=True):
            return
        deadline = time.monotonic() + self._grace
        while self._signal(0, ended=True):
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL, ended=True)
                return
            time.sleep(0.02)

    def _signal(self, number: int, ended: bool = False) -> bool:
        """Send a signal to the group, and return whether there was anybody left in it."""
        process = self._process
        if process is None or (process.returncode is not None) is not ended:
            return False
        if not HAS_GROUPS:
            process.send_signal(number)
            return not ended
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS: EPERM where only a zombie is left
            return False
        return True


@contextmanager
def _handled_by(forward: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let signals be handed on. One that is ignored, as by nohup(1), stays so for both."""
    if not _is_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in FORWARDED}
    ours = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in ours:
        signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Terminal:
    """The controlling terminal, lent to the child's group as a shell does, where this process has it to itself.

    Then the keyboard's signals reach the child alone, and once. In a pipeline it stays where it is, for a neighbour in
    this group may read from it; the keyboard's signals are then handed on like all others.
    """

    def __init__(self, group: int) -> None:
        self._group = group
        self._fd = -1

    def __enter__(self) -> _Terminal:
        self._own = os.getpgrp() if HAS_GROUPS else 0
        if HAS_GROUPS and _is_main_thread() and os.isatty(0) and os.isatty(1):
            with suppress(OSError):
                self._fd = os.open("/dev/tty", os.O_RDWR)
        self._lend()
        return self

    def __exit__(self, *error: object) -> None:
        self._take_back()
        if self._fd >= 0:
            os.close(self._fd)

    def stop_with_child(self) -> None:
        """Stop, since the keyboard has stopped the child; go on with it when the shell says so."""
        if not self._take_back():
            return
        os.killpg(self._own, signal.SIGTSTP)
        self._lend()
        with suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGCONT)

    def _lend(self) -> None:
        if self._fd >= 0 and os.tcgetpgrp(self._fd) == self._own:
            self._hand_to(self._group)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGCONT)  # it may have been too early to read

    def _take_back(self) -> bool:
        if self._fd < 0 or os.tcgetpgrp(self._fd) != self._group:
            return False
        self._hand_to(self._own)
        return True

    def _hand_to(self, group: int) -> None:
        before = signal.getsignal(signal.SIGTTOU)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # who is not in the foreground would be stopped for it
        try:
            with suppress(OSError):
                os.tcsetpgrp(self._fd, group)
        finally:
            signal.signal(signal.SIGTTOU, before)
