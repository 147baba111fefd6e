"""The worker processes, and what can happen to a process."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .history import KILL, Recorder
from .nemesis import Fault
from .worker import STEP_CLOCK, Task, work

PATIENCE = 20.0  # seconds until a worker that should have ended is said to hang

_context: Any = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.chaos.preload"])


def warm_up() -> None:
    """Wait until the fork server has loaded what the workers have in common: then they start at once."""
    process = _context.Process(target=_nothing, daemon=True)
    process.start()
    process.join()


def _nothing() -> None:
    pass


class Team:
    """So many workers; who is killed is replaced. ``task_of(label, number)`` says what each has to do."""

    def __init__(self, size: int, task_of: Callable[[str, int], Task]) -> None:
        self._task_of = task_of
        self._lives = [0] * size
        self._members = [self._start(number) for number in range(size)]

    @property
    def faults(self) -> list[Fault]:
        return [Fault(KILL, self._kill), Fault("stop workers", self._stop), Fault("step clocks", self._step_clock)]

    def join(self, recorder: Recorder) -> None:
        """Wait until all have ended; those that hang say where in their logs, and are killed."""
        for number, member in enumerate(self._members):
            member.join(PATIENCE)
            if member.exitcode is None:
                self._signal([number], signal.SIGQUIT)
                member.join(1)
            if member.exitcode != 0:
                what = f"worker {self._label(number)} {'hangs' if member.exitcode is None else 'died'}: see its log"
                recorder.write("trouble", what=what)
        self.close()

    def close(self) -> None:
        for member in self._members:
            member.kill()
            member.join()

    def _start(self, number: int) -> Any:
        member = _context.Process(target=work, args=(self._task_of(self._label(number), number),), daemon=True)
        member.start()
        return member

    def _label(self, number: int) -> str:
        return f"{number}-{self._lives[number]}"

    def _some(self, chance: random.Random) -> list[int]:
        return chance.sample(range(len(self._members)), chance.randint(1, len(self._members) * 2 // 3))

    @contextmanager
    def _kill(self, chance: random.Random) -> Iterator[list[str]]:
        chosen = self._some(chance)
        for number in chosen:
            self._members[number].kill()
        yield [self._label(number) for number in chosen]
        for number in chosen:
            self._members[number].join()
            self._lives[number] += 1
            self._members[number] = self._start(number)

    @contextmanager
    def _stop(self, chance: random.Random) -> Iterator[list[str]]:
        chosen = self._some(chance)
        self._signal(chosen, signal.SIGSTOP)
        try:
            yield [self._label(number) for number in chosen]
        finally:
            self._signal(chosen, signal.SIGCONT)

    @contextmanager
    def _step_clock(self, chance: random.Random) -> Iterator[list[str]]:
        chosen = self._some(chance)
        self._signal(chosen, STEP_CLOCK)
        yield [self._label(number) for number in chosen]

    def _signal(self, numbers: list[int], signal: signal.Signals) -> None:
        for number in numbers:
            with suppress(ProcessLookupError):  # it has come to its end
                os.kill(self._members[number].pid, signal)
