"""Keep the leases of this process alive, and notice on time when one is lost.

Three kinds of daemon thread, each started when it is first needed and ended when it is idle:

- the timer looks at all held guards whenever something is due. It does no I/O, so that a loss is noticed on time even
  while a store hangs;
- a worker for each store sends what is due as one batch, and a second one steps in while the first one hangs, so that
  one dead connection costs nobody a lease;
- the announcer calls ``on_lost`` and the like, which may take their time.

None keeps the interpreter alive. At its exit, leases still held are released.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import queue
import random
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from . import clock
from .exceptions import StoreUnavailable
from .stores.base import BaseStore, Claim, here

logger = logging.getLogger("django_locks")

NAP = 1.0  # seconds: what ends without a word (a release, a dropped guard) is noticed within
TOGETHER = 0.05  # seconds: what is due so soon goes out with what is due now
SLOW = 0.1  # seconds without an answer before a renewal is tried on another connection
AT_EXIT = 2.0  # seconds for all releases at the exit of the interpreter


class Held(Protocol):
    """What the keeper asks of a guard. Times are of the holder's clock."""

    due: float  #: when to renew; infinity: never
    deadline: float  #: when it is lost without a renewal
    window: float  #: how much sooner it may be renewed together with others
    in_flight: float  #: since when a renewal is on its way; infinity: none is

    @property
    def store(self) -> BaseStore: ...
    @property
    def key(self) -> str: ...
    def claim(self, now: float) -> Claim: ...
    def renewed(self, sent: float, ttl: float) -> None: ...
    def refused(self) -> None: ...
    def failed(self, error: StoreUnavailable, again: float) -> None: ...
    def expire(self) -> None: ...
    def release(self) -> bool: ...


class Keeper:
    """Renews the leases of all guards that were added and not removed. Guards are held weakly."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: in a forked child, where the parent's guards and threads are not."""
        self._guards: dict[int, weakref.ref[Held]] = {}
        self._crews: dict[BaseStore, _Crew] = {}
        self._turn = threading.Condition()
        self._timer: threading.Thread | None = None
        self._wake = math.inf  # when the timer looks again
        self._exiting: threading.Event | None = None
        self._announcer = _Announcer()

    def add(self, guard: Held) -> None:
        """Look after the guard until it is removed or dropped."""
        soon = min(guard.due, guard.deadline)
        with self._turn:
            self._guards[id(guard)] = weakref.ref(guard)
            if self._timer is None:
                self._timer = threading.Thread(target=self._run, name="django_locks timer", daemon=True)
                self._timer.start()
            elif soon < self._wake:
                self.look(soon)

    def remove(self, guard: Held) -> None:
        """Renew the guard no more."""
        self._guards.pop(id(guard), None)

    def look(self, when: float = -math.inf) -> None:
        """Let the timer look again at ``when``, if it would not sooner."""
        with self._turn:
            if when < self._wake:
                self._wake = when
                self._turn.notify()

    def announce(self, call: Callable[[], None]) -> None:
        """Call it soon, in another thread. What it raises is logged."""
        self._announcer.announce(call)

    def release_all(self) -> None:
        """Release what is still held, at the exit of the interpreter, which starts no threads any more."""
        if self._timer is None:
            return
        self._exiting = threading.Event()
        self.look()
        self._exiting.wait(AT_EXIT)

    def _run(self) -> None:
        here.own = "callers"  # for the releases at exit
        while self._exiting is None:
            with self._turn:
                self._wake = math.inf  # until the look is over, `add` may only bring it forward
            wake = self._look_at_all(clock.now())
            with self._turn:
                if not self._guards and self._wake == math.inf:
                    self._timer = None
                    return
                self._wake = min(self._wake, wake, clock.now() + NAP)
                while self._exiting is None and (nap := self._wake - clock.now()) > 0:
                    self._turn.wait(min(nap, NAP))
        self._release_all()
        self._exiting.set()

    def _look_at_all(self, now: float) -> float:
        """Send off what is due, expire what is lost, and return when to look again."""
        try:
            return self._look_at_each(self._held(), now)
        except Exception:  # such as no more threads: whoever holds a lease needs the timer all the same
            logger.exception("Looking after the held locks failed; it is tried again")
            return now + TOGETHER

    def _look_at_each(self, held: list[Held], now: float) -> float:
        for guard in held:
            if guard.deadline <= now:
                guard.expire()
        alive = [guard for guard in held if guard.deadline > now]
        self._dismiss_idle(alive)
        self._send_due(alive, now)
        return min((min(guard.deadline, _next_try(guard)) for guard in alive), default=math.inf)

    def _held(self) -> list[Held]:
        held = []
        for key, ref in list(self._guards.items()):
            guard = ref()
            if guard is None:
                self._guards.pop(key, None)
            else:
                held.append(guard)
        return held

    def _send_due(self, alive: list[Held], now: float) -> None:
        for store in {guard.store for guard in alive if _is_due(guard, now, TOGETHER)}:
            batch = [guard for guard in alive if guard.store is store and _is_due(guard, now, guard.window)]
            if store not in self._crews:
                self._crews[store] = _Crew(store, self)
            self._crews[store].send(batch, now)

    def _dismiss_idle(self, alive: list[Held]) -> None:
        for store in self._crews.keys() - {guard.store for guard in alive}:
            self._crews.pop(store).dismiss()

    def _release_all(self) -> None:
        for guard in self._held():
            try:
                guard.release()
            except Exception as error:
                logger.warning("A lock could not be released at exit: %s", error)


def _next_try(guard: Held) -> float:
    return guard.due if guard.in_flight == math.inf else guard.in_flight + max(guard.window, SLOW)


def _is_due(guard: Held, now: float, early: float) -> bool:
    """Is it due, or will it be so soon that it may go out together with others?"""
    return _next_try(guard) <= now + (max(early, TOGETHER) if guard.in_flight == math.inf else 0)


class _Crew:
    """The workers of one store: one, or two while the first one hangs."""

    def __init__(self, store: BaseStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper
        self._workers: list[_Worker] = []

    def send(self, batch: list[Held], now: float) -> None:
        worker = self._free_worker(hanging=any(guard.in_flight != math.inf for guard in batch))
        if worker is None:
            return  # both hang: their answers decide
        for guard in batch:
            guard.in_flight = now
        worker.send(batch)

    def dismiss(self) -> None:
        for worker in self._workers:
            worker.send(None)

    def _free_worker(self, hanging: bool) -> _Worker | None:
        idle = [worker for worker in self._workers if worker.pending == 0]
        if idle:
            return idle[0]
        if not self._workers or (hanging and len(self._workers) == 1):
            if hanging:
                logger.warning("The lock store %r is slow to renew: trying another connection", self._store.alias)
            self._workers.append(_Worker(self._store, self._keeper))
            return self._workers[-1]
        return None if hanging else self._workers[-1]


class _Worker:
    """A thread that sends renewals of one store."""

    def __init__(self, store: BaseStore, keeper: Keeper) -> None:
        self.pending = 0
        self._store = store
        self._keeper = keeper
        self._batches: queue.SimpleQueue[list[Held] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"django_locks renewer {store.alias}", daemon=True).start()

    def send(self, batch: list[Held] | None) -> None:
        self.pending += 1
        self._batches.put(batch)

    def _run(self) -> None:
        here.own = "renewal"
        try:
            while self._next():
                self.pending = self._batches.qsize()
                self._keeper.look()
        finally:
            self._store.leave_thread()

    def _next(self) -> bool:
        batch = self._batches.get()  # a local of its own call, so that no guard outlives its batch
        if batch is None:
            return False
        for claims in _rounds(batch):
            self._renew(claims)
        return True

    def _renew(self, batch: dict[str, Held]) -> None:
        sent = clock.now()
        claims = {name: guard.claim(sent) for name, guard in batch.items()}
        try:
            ours = self._store.renew(list(claims.values()))
        except StoreUnavailable as error:
            self._retry(batch, error)
        except Exception as error:  # a fault of a store must not end the renewals
            logger.exception("The lock store %r failed while renewing", self._store.alias)
            self._retry(batch, self._store.unavailable("renew", "", error))
        else:
            for name, guard in batch.items():
                guard.in_flight = math.inf
                if name in ours:
                    guard.renewed(sent, claims[name][2])
                else:
                    guard.refused()

    def _retry(self, batch: dict[str, Held], error: StoreUnavailable) -> None:
        now = clock.now()
        for guard in batch.values():
            guard.in_flight = math.inf
            # Several tries fit into the third of the TTL that is left, and not all processes try at once.
            guard.failed(error, now + min(1.0, guard.window / 4) * random.uniform(0.5, 1.5))  # noqa: S311


def _rounds(batch: list[Held]) -> list[dict[str, Held]]:
    """Split the batch so that no name comes twice in a round: a lost guard may meet its successor here."""
    rounds: list[dict[str, Held]] = []
    for guard in batch:
        target = next((claims for claims in rounds if guard.key not in claims), None)
        if target is None:
            rounds.append({guard.key: guard})
        else:
            target[guard.key] = guard
    return rounds


class _Announcer:
    """Calls what is announced, one after the other, in a thread of its own."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._turn = threading.RLock()
        self._running = False

    def announce(self, call: Callable[[], None]) -> None:
        with self._turn:
            self._calls.put(call)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="django_locks announcer", daemon=True).start()

    def _run(self) -> None:
        here.own = "callers"
        while True:
            try:
                self._announce_next()
            except queue.Empty:
                with self._turn:
                    if self._calls.empty():
                        self._running = False
                        return

    def _announce_next(self) -> None:
        call = self._calls.get(timeout=NAP)
        try:
            call()
        except Exception:
            logger.exception("What was to be told of a lost lock failed")


keeper = Keeper()
atexit.register(keeper.release_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=keeper.reset)
