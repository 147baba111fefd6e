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
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from . import chance, clock
from .exceptions import StoreUnavailable
from .stores.base import BaseStore, Claim, here

logger = logging.getLogger("django_locks")

NAP = 1.0  # seconds: what ends without a word (a release, a dropped guard) is noticed within
TOGETHER = 0.05  # seconds: what is due so soon goes out with what is due now
HOPELESS = 30.0  # seconds without an answer before another worker takes the place of one
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
        self._guards: set[weakref.ref[Held]] = set()
        self._crews: dict[BaseStore, _Crew] = {}
        self._turn = threading.Condition()
        self._timer: threading.Thread | None = None
        self._wake = math.inf  # when the timer looks again
        self._exiting: threading.Event | None = None
        self._announcer = _Announcer()

    def add(self, guard: Held) -> None:
        """Look after the guard until it is removed or dropped."""
        ref = weakref.ref(guard)
        # No mutex, if the timer runs: the guard is there before the look at the timer, which looks the other way round.
        self._guards.add(ref)
        if self._timer is None:
            self._start_timer(ref)
        soon = guard.due if guard.due < guard.deadline else guard.deadline
        if soon < self._wake:
            self.look(soon)

    def _start_timer(self, ref: weakref.ref[Held]) -> None:
        with self._turn:
            try:
                self._timer = self._timer or _start("timer", self._run)
            except BaseException:
                self._guards.discard(ref)
                raise

    def remove(self, guard: Held) -> None:
        """Renew the guard no more."""
        self._guards.discard(weakref.ref(guard))

    def look(self, when: float = -math.inf) -> None:
        """Let the timer look again at ``when``, if it would not sooner."""
        with self._turn:
            if when < self._wake:
                self._wake = when
                self._turn.notify()

    def announce(self, call: Callable[[], object]) -> None:
        """Call it soon, in another thread. What it raises is logged."""
        self._announcer.announce(call)

    def release_all(self) -> None:
        """Release what is still held, at the exit of the interpreter, which starts no threads any more."""
        with self._turn:
            if self._timer is None:
                return
            self._exiting = threading.Event()
            self._turn.notify()
        self._exiting.wait(AT_EXIT)

    def _run(self) -> None:
        here.own = "callers"  # for the releases at exit
        while self._exiting is None:
            with self._turn:
                self._wake = math.inf  # until the look is over, `add` may only bring it forward
            wake = self._look_at_all(clock.now())
            with self._turn:
                if self._exiting is None and self._wake == math.inf and self._ends():
                    return
                self._wake = min(self._wake, wake, clock.now() + NAP)
                while self._exiting is None and (nap := self._wake - clock.now()) > 0:
                    self._turn.wait(min(nap, NAP))
        self._release_all()
        self._exiting.set()

    def _ends(self) -> bool:
        timer, self._timer = self._timer, None
        if self._guards:
            self._timer = timer
        return self._timer is None

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
        return min((_next_look(guard, now) for guard in alive), default=math.inf)

    def _held(self) -> list[Held]:
        held = []
        for ref in list(self._guards):
            guard = ref()
            if guard is None:
                self._guards.discard(ref)
            else:
                held.append(guard)
        return held

    def _send_due(self, alive: list[Held], now: float) -> None:
        for store in {guard.store for guard in alive if _is_due(guard, now, min(TOGETHER, guard.window / 10))}:
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


def _next_look(guard: Held, now: float) -> float:
    # What was due by now is on its way, or waits for a worker, whose answer brings the next look.
    next_try = _next_try(guard)
    return min(guard.deadline, next_try) if next_try > now else guard.deadline


def _is_due(guard: Held, now: float, early: float) -> bool:
    """Is it due, or will it be so soon that it may go out together with others?"""
    return _next_try(guard) <= now + (early if guard.in_flight == math.inf else 0)


class _Crew:
    """The workers of one store: one, or two while the first one hangs."""

    def __init__(self, store: BaseStore, keeper: Keeper) -> None:
        self._store = store
        self._keeper = keeper
        self._workers: list[_Worker] = []

    def send(self, batch: list[Held], now: float) -> None:
        worker = self._free_worker(any(guard.in_flight != math.inf for guard in batch), now)
        if worker is None:
            return  # both hang: their answers decide
        for guard in batch:
            guard.in_flight = now
        worker.send(batch, now)

    def dismiss(self) -> None:
        for worker in self._workers:
            worker.dismiss()

    def _free_worker(self, hanging: bool, now: float) -> _Worker | None:
        for worker in [worker for worker in self._workers if worker.since < now - HOPELESS]:
            self._workers.remove(worker)
            worker.dismiss()
        idle = [worker for worker in self._workers if worker.since == math.inf]
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
        self._store = store
        self._keeper = keeper
        self._batches: queue.SimpleQueue[tuple[list[Held], float] | None] = queue.SimpleQueue()
        self._sent = self._done = 0  # written by the timer alone, and by this thread alone
        self._since = 0.0
        _start(f"renewer {store.alias}", self._run)

    @property
    def since(self) -> float:
        """When it began to be busy; infinity when it is idle."""
        return math.inf if self._sent == self._done else self._since

    def send(self, batch: list[Held], now: float) -> None:
        self._since = min(self.since, now)
        self._sent += 1
        self._batches.put((batch, now))

    def dismiss(self) -> None:
        self._batches.put(None)

    def _run(self) -> None:
        here.own = "renewal"
        try:
            while self._next():
                self._done += 1
                self._keeper.look()
        finally:
            self._store.leave_thread()

    def _next(self) -> bool:
        order = self._batches.get()  # a local of its own call, so that no guard outlives its batch
        if order is None:
            return False
        batch, when = order
        for claims in _rounds(batch):
            try:
                self._renew(claims, when)
            except StoreUnavailable as error:
                self._retry(claims, when, error)
            except BaseException as error:  # whatever it is, it must not end the renewals
                logger.exception("The lock store %r failed while renewing", self._store.alias)
                self._retry(claims, when, self._store.unavailable("renew", "", error))
        return True

    def _renew(self, batch: dict[str, Held], when: float) -> None:
        sent = clock.now()
        claims = {name: guard.claim(sent) for name, guard in batch.items()}
        ours = self._store.renew(list(claims.values()))
        for name, guard in batch.items():
            if guard.in_flight == when:
                guard.in_flight = math.inf
            if name in ours:
                guard.renewed(sent, claims[name][2])
            else:
                guard.refused()

    def _retry(self, batch: dict[str, Held], when: float, error: StoreUnavailable) -> None:
        now = clock.now()
        for guard in batch.values():
            if guard.in_flight != when:
                continue  # the other worker's try decides, or has decided
            guard.in_flight = math.inf
            # Several tries fit into the third of the TTL that is left, and not all processes try at once.
            guard.failed(error, now + min(1.0, guard.window / 4) * chance.uniform(0.5, 1.5))


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
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._turn = threading.RLock()
        self._running = False

    def announce(self, call: Callable[[], object]) -> None:
        with self._turn:
            self._calls.put(call)
            if not self._running:
                _start("announcer", self._run)
                self._running = True

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
        except BaseException:  # such as SystemExit, which ends no more than the thread that raises it
            logger.exception("What was to be told of a lost lock failed")


def _start(name: str, run: Callable[[], None]) -> threading.Thread:
    """Return a started thread; raises RuntimeError where no more threads can be started."""
    thread = threading.Thread(target=run, name=f"django_locks {name}", daemon=True)
    thread.start()
    return thread


keeper = Keeper()
atexit.register(keeper.release_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=keeper.reset)
