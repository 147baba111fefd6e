"""From the holder's release to the grant of one that has waited for over a second, in another process."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.crew import context
from bench.results import Result, Row
from bench.servers import World
from bench.timing import interleaved, percentile, ratio

from . import handoff_rivals as rivals

NEEDS = {"redis", "postgres"}
WAITED = 1.05  # seconds
APART = 0.03  # seconds between two releases, so that none disturbs the next


def run(world: World, quick: bool) -> list[Result]:
    kinds = [kind for kind in rivals.KINDS if world.has(rivals.KINDS[kind].needs)]
    found = _measure(world, kinds, 3 if quick else 50)
    result = Result("Hand-off to one that has waited for over a second, in another process", unit="ms")
    result.rows = [Row(who, statistics.median(took), percentile(took, 0.99)) for who, took in found.items()]
    result.notes.append("PostgreSQL does not flush its log here (`synchronous_commit=off`): a hand-off is two commits.")
    _compare(found, result.ratios)
    return [result, _memory(9 if quick else 50), *_unwaited(world, quick)]


def _unwaited(world: World, quick: bool) -> Iterator[Result]:
    """Yield what a pair costs with a release that would wake waiters, if there were any, and with one that cannot."""
    from django_locks.conf import entries
    from django_locks.stores.redis import RedisStore
    from django_locks.stores.redis_wire import RELEASE_SOURCE, Script

    seconds = 0.4 if quick else 6
    if world.has("redis"):
        silent = RedisStore("silent", world.redis_url)
        silent._wire._release = Script(RELEASE_SOURCE.replace("redis.pcall('PUBLISH', KEYS[1], '')", "0"))
        stores = {"redis": entries("redis").store, "redis, without PUBLISH": silent}
        yield _pairs("redis_release_vs_silent", {who: _pair(store) for who, store in stores.items()}, seconds)
    if world.has("notify", "polling"):
        calls = {
            "postgres, notify": _pair(entries("notify").store),
            "postgres, polling": _pair(entries("polling").store),
        }
        yield _pairs("notify_release_vs_polling", calls, seconds)


def _pairs(key: str, calls: dict[str, Callable[[], object]], seconds: float) -> Result:
    result = Result("Acquire and release in a store that wakes waiters, while nobody waits")
    samples = interleaved(calls, seconds)
    result.take(samples)
    result.ratios[key] = ratio(samples, *calls)
    return result


def _pair(store: Any) -> Callable[[], object]:
    def pair() -> None:
        store.acquire("unwaited", "me", 30, "bench")
        store.release("unwaited", "me")

    return pair


def _compare(found: dict[str, list[float]], ratios: dict[str, float]) -> None:
    medians = {who: statistics.median(took) for who, took in found.items()}
    if "redis" in medians:
        ratios["redis_handoff_vs_blpop"] = medians["redis"] / medians["BLPOP, SET NX"]
        ratios["redis_py_handoff_vs_redis"] = medians["redis-py Lock"] / medians["redis"]
    if "postgres, notify" in medians:
        ratios["notify_handoff_ms"] = medians["postgres, notify"]
        ratios["polling_handoff_vs_notify"] = medians["postgres, polling"] / medians["postgres, notify"]


def _measure(world: World, kinds: list[str], rounds: int) -> dict[str, list[float]]:
    start = context(world)
    ours, theirs = start.Pipe()
    child = start.Process(target=_wait_for_all, args=(world.redis_url, kinds, theirs), daemon=True)
    child.start()
    holders = {kind: rivals.KINDS[kind](world.redis_url) for kind in kinds}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for holder in holders.values():
            holder.hold()
        ours.send("wait")
        time.sleep(WAITED)
        kinds = [*kinds[1:], kinds[0]]  # none is always the first after the long sleep
        for kind in kinds:
            time.sleep(APART)
            begin = time.monotonic()  # one clock for all processes of a machine
            holders[kind].give()
            who, end = ours.recv()
            assert who == kind, f"{who} was granted before its turn"
            if number:  # the first round connects
                found[kind].append((end - begin) * 1000)
        ours.send("give back")
        assert ours.recv() == "given back"
    ours.send(None)
    child.join(5)
    return found


def _wait_for_all(redis_url: str, kinds: list[str], pipe: Any) -> None:
    """Wait for each in a thread of its own, and say at what moment it came."""
    waiters = [_Waiter(kind, rivals.KINDS[kind](redis_url), pipe) for kind in kinds]
    while (order := pipe.recv()) is not None:
        for waiter in waiters:
            waiter.orders.set() if order == "wait" else waiter.done.wait()
        if order == "give back":
            for waiter in waiters:
                waiter.done.clear()
            pipe.send("given back")


class _Waiter:
    def __init__(self, kind: str, rival: Any, pipe: Any) -> None:
        self.orders, self.done = threading.Event(), threading.Event()
        self._kind, self._rival, self._pipe = kind, rival, pipe
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.orders.wait()
            self.orders.clear()
            self._rival.wait()
            end = time.monotonic()
            self._pipe.send((self._kind, end))
            self._rival.give()
            self.done.set()


def _memory(rounds: int) -> Result:
    from django_locks import locks

    kinds = {"memory": rivals.Ours("default"), "threading.Condition": rivals.ByCondition()}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, rival in kinds.items():
            took = _within_process(rival)
            if number:
                found[kind].append(took * 1e6)
    assert locks.get("handoff:default") is None
    result = Result("Hand-off between two threads of a process, memory store", unit="µs")
    result.rows = [Row(who, statistics.median(took), percentile(took, 0.99)) for who, took in found.items()]
    medians = [statistics.median(took) for took in found.values()]
    result.ratios["memory_handoff_vs_condition"] = medians[0] / medians[1]
    return result


def _within_process(rival: Any) -> float:
    moments: list[float] = []

    def wait() -> None:
        rival.wait()
        moments.append(time.monotonic())
        rival.give()

    rival.hold()
    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    begin = time.monotonic()
    rival.give()
    waiter.join()
    return moments[0] - begin
