"""One of the processes that take the locks, and write down what they believe."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from django.db import Error, close_old_connections, connections, transaction

from django_locks import LeaseLost, LockNotAcquired, StoreUnavailable, clock, conf, locks
from tests.crew import Spec

from . import counters, sabotage
from .history import FORCE, Recorder, now
from .recording import record_calls, short

STEP_CLOCK = signal.SIGUSR1
DAY = 86_400.0
PLACES = 2  #: who may hold a name with a limit at once
THREADS = 4


class Task(NamedTuple):
    spec: Spec
    data: str  #: the alias of the database in which the counters are
    transactions: bool  #: may a lock be taken inside a transaction?
    folder: Path
    label: str
    seed: str
    names: tuple[str, ...]
    ttl: float
    end: float  #: when to stop, by the clock of the history
    sabotage: str = ""


def work(task: Task) -> None:
    """Take and leave locks until it is time to end."""
    log = os.open(task.folder / f"{task.label}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGQUIT, all_threads=True)  # where does it hang?
    recorder = Recorder(task.folder / f"{task.label}.jsonl")
    try:
        task.spec.apply()
        if task.sabotage:
            sabotage.WAYS[task.sabotage]()
        Worker(task, recorder).run()
    except BaseException:
        recorder.write("trouble", what=traceback.format_exc())


class Worker:
    def __init__(self, task: Task, recorder: Recorder) -> None:
        self._task = task
        self._recorder = recorder
        self._chance = random.Random(task.seed)
        self._writes = 0
        self._guards: dict[str, Any] = {}  #: what it believes to hold, by owner
        #: What it does with a lock, and how often.
        self._habits: dict[Callable[[str], None], float] = {
            self._keep: 12,
            self._keep_in_task: 6,
            self._write: 30,
            self._hand_on: 3,
            self._keep_several: 3,
            self._keep_a_place: 3,
            self._crowd: 2,
            self._free_by_force: 0.04,
        }
        if task.transactions:
            self._habits[self._keep_until_commit] = 6
        record_calls(conf.entries("default").store, recorder)
        _let_wall_clock_step(self._chance)
        # The most dangerous moment of all: stopped with a lease, and going on without.
        signal.signal(signal.SIGCONT, lambda *_: [self._look(guard) for guard in list(self._guards.values())])

    def run(self) -> None:
        while now() < self._task.end:
            [habit] = self._chance.choices(list(self._habits), list(self._habits.values()))
            self._follow(habit)

    def _follow(self, habit: Callable[[str], None]) -> None:
        try:
            habit(self._chance.choice(self._task.names))
        except LockNotAcquired:
            self._pause(0.03)
        except LeaseLost:
            pass
        except (StoreUnavailable, Error):
            self._pause(0.1)
        close_old_connections()  # as after a request

    # Habits

    def _keep(self, name: str) -> None:
        with self._lock(name) as guard:
            self._look_after(guard, 2.5, rarely=12)
            if self._chance.random() < 0.2:
                guard.extend()
                self._look_after(guard, 1.0)

    def _keep_in_task(self, name: str) -> None:
        async def keep() -> None:
            async with locks.lock(name, **self._options()) as guard:
                self._granted(guard)
                with self._believing(guard):
                    end = self._some_time(2.5, rarely=12)
                    while self._look(guard) and now() < end:
                        await asyncio.sleep(0.01)

        asyncio.run(keep())

    def _write(self, name: str) -> None:
        """Increment the counter in a fenced transaction, and take note of how it ended."""
        with self._lock(name) as guard:
            self._look(guard)
            self._writes += 1
            op = f"{self._task.label}-{self._writes}"
            self._recorder.write("write", op=op, name=name, fence=guard.fence)
            self._recorder.write("wrote", op=op, outcome=self._increment(guard, op))
            self._look(guard)

    def _increment(self, guard: Any, op: str) -> str:
        def pause() -> None:
            self._look_after(guard, 1.5)

        try:
            with guard.atomic(using=self._task.data):
                counters.increment(self._task.data, op, guard.name, guard.fence, pause)
                pause()
        except (LeaseLost, StoreUnavailable):
            return "failed"
        except Error:
            return "unknown"
        return "ok"

    def _keep_until_commit(self, name: str) -> None:
        """Leave the lock's block before the transaction ends: nobody else may have it until then."""
        with transaction.atomic(using=self._task.data):
            with self._lock(name) as guard:
                self._look_after(guard, 0.0)
            with self._believing(guard):
                self._look_after(guard, 1.0)

    def _hand_on(self, name: str) -> None:
        """Give the lease to somebody, who may never come."""
        options = self._options()
        guard = locks.acquire(name, **options)
        self._granted(guard)
        with self._believing(guard):
            self._look_after(guard, 0.1)
        owner = guard.detach()
        if self._chance.random() < 0.7:
            del options["wait"]
            self._take_on(locks.adopt(name, owner, **options))

    def _take_on(self, guard: Any) -> None:
        with guard:
            self._granted(guard)
            with self._believing(guard):
                self._look_after(guard, 2.5, rarely=12)

    def _keep_several(self, name: str) -> None:
        """Have two names or none."""
        with locks.lock_many({name, self._chance.choice(self._task.names)}, **self._options()) as guards:
            with ExitStack() as believing:
                for guard in guards.values():
                    self._granted(guard)
                    believing.enter_context(self._believing(guard))
                for guard in guards.values():
                    self._look_after(guard, 1.0)

    def _keep_a_place(self, name: str) -> None:
        with self._lock(f"{name}-places", limit=PLACES) as guard:
            self._look_after(guard, 2.5, rarely=12)

    def _crowd(self, name: str) -> None:
        """Take locks in several threads, of which not all find a place in a pool of connections."""

        def take() -> None:
            try:
                self._follow(self._keep)
            except BaseException:
                self._recorder.write("trouble", what=traceback.format_exc())
            finally:
                connections.close_all()

        threads = [threading.Thread(target=take) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _free_by_force(self, name: str) -> None:
        """Take the lease from its holder, who hears of it at his next renewal, as a person would."""
        begin = now()
        try:
            locks.force_release(name)
        finally:
            self._recorder.write("fault", fault=FORCE, begin=begin, workers=[self._task.label])

    @contextmanager
    def _lock(self, name: str, **options: Any) -> Iterator[Any]:
        with locks.lock(name, **self._options(), **options) as guard:
            self._granted(guard)
            with self._believing(guard):
                yield guard

    def _options(self) -> dict[str, Any]:
        wait = self._chance.choice((0, 0, 0.1, 0.3))
        longest = self._chance.choice((None, None, None, self._chance.uniform(0.1, 2.0) * self._task.ttl))
        at_least = self._chance.choice((*[None] * 9, self._chance.uniform(0.1, 0.8) * self._task.ttl))
        renew = self._chance.random() < 0.8
        return {"ttl": self._task.ttl, "wait": wait, "renew": renew, "max_hold": longest, "at_least": at_least}

    # Beliefs

    def _granted(self, guard: Any) -> None:
        self._recorder.write("granted", name=guard.name, owner=short(guard.owner), fence=guard.fence)

    @contextmanager
    def _believing(self, guard: Any) -> Iterator[None]:
        self._guards[guard.owner] = guard
        try:
            yield
        finally:
            del self._guards[guard.owner]

    def _look_after(self, guard: Any, longest: float, rarely: int = 30) -> None:
        """Look at it again and again, for up to so many TTLs, but mostly for moments."""
        end = self._some_time(longest, rarely)
        while self._look(guard) and now() < end:
            time.sleep(0.01)

    def _some_time(self, longest: float, rarely: int) -> float:
        return min(now() + self._chance.random() ** rarely * longest * self._task.ttl, self._task.end)

    def _look(self, guard: Any) -> bool:
        before = now()  # it may be stopped at any point
        if guard.lost:
            self._recorder.write("lost", owner=short(guard.owner))
            return False
        self._recorder.write("held", at=before, owner=short(guard.owner))
        return True

    def _pause(self, longest: float) -> None:
        time.sleep(self._chance.uniform(0, longest))


def _let_wall_clock_step(chance: random.Random) -> None:
    """Let the signal move the time of day, as an operator or NTP does: nothing may depend on it."""
    real, offset = time.time, 0.0

    def step(*_: object) -> None:
        nonlocal offset
        offset = chance.uniform(-DAY, DAY)

    time.time = clock.epoch = lambda: real() + offset
    signal.signal(STEP_CLOCK, step)
