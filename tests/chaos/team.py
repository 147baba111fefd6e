"""The worker processes, and what can happen to a process."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .history import KILL, Recorder
from .nemesis import Fault
from .worker import STEP_CLOCK, Task, work

PATIENCE = 20.0  # seconds until a worker that should have ended is said to hang


class Team:
    """So many workers; who is killed is replaced. ``task_of(label, number)`` says what each has to do."""

    def __init__(self, size: int, task_of: Callable[[str, int], Task]) -> None:
        self._context: Any = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.preload"])
        self._task_of = task_of
        self._lives = [0] * size
        self._members = [self._start(number) for number in range(size)]

    @property
    def faults(self) -> list[Fault]:
        return [Fault(KILL, self._kill), Fault("stop a worker", self._stop), Fault("step a clock", self._step_clock)]

    def join(self, recorder: Recorder) -> None:
        """Wait until all have ended; those that hang say where in their logs, and are killed."""
        for number, member in enumerate(self._members):
            member.join(PATIENCE)
            if member.is_alive():
                recorder.write("trouble", what=f"worker {self._label(number)} hangs: see its log")
                os.kill(member.pid, signal.SIGQUIT)
                member.join(1)
        self.close()

    def close(self) -> None:
        for member in self._members:
            member.kill()
            member.join()

    def _start(self, number: int) -> Any:
        member = self._context.Process(target=work, args=(self._task_of(self._label(number), number),), daemon=True)
        member.start()
        return member

    def _label(self, number: int) -> str:
        return f"{number}-{self._lives[number]}"

    @contextmanager
    def _kill(self, chance: random.Random) -> Iterator[str]:
        number = chance.randrange(len(self._members))
        self._members[number].kill()
        self._members[number].join()
        yield self._label(number)
        self._lives[number] += 1
        self._members[number] = self._start(number)

    @contextmanager
    def _stop(self, chance: random.Random) -> Iterator[str]:
        number = chance.randrange(len(self._members))
        os.kill(self._members[number].pid, signal.SIGSTOP)
        yield self._label(number)
        os.kill(self._members[number].pid, signal.SIGCONT)

    @contextmanager
    def _step_clock(self, chance: random.Random) -> Iterator[str]:
        number = chance.randrange(len(self._members))
        os.kill(self._members[number].pid, STEP_CLOCK)
        yield self._label(number)
