"""Waiting: woken at once, fair, cheap, never late, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from django_locks import LockNotAcquired, conf, locks
from django_locks.stores.memory import MemoryStore
from django_locks.stores.waiting import Waiters
from tests.crew import Spec


@pytest.fixture(params=["memory", "redis", "cluster", "notify"])
def pushing(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use each store that wakes its waiters."""
    spec: Spec = spec_of("postgresql") if request.param == "notify" else spec_of(request.param)
    if request.param == "notify":
        spec.locks["OPTIONS"] = {"notify": True}
    settings.LOCKS = {"default": spec.locks}
    return spec


def store() -> Any:
    return conf.entries("default").store


class Waiting:
    """A thread that waits for a lock, holds it for a moment, and notes when it was granted."""

    def __init__(self, name: str, log: list[Any], label: Any = None, hold: float = 0.0, **options: Any) -> None:
        self.granted_at = 0.0
        self.log, self.label, self.hold = log, label, hold
        self.name, self.options = name, {"wait": 20, **options}
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            with locks.lock(self.name, **self.options):
                self.granted_at = time.perf_counter()
                self.log.append(self.label)
                time.sleep(self.hold)
        except LockNotAcquired as error:
            self.log.append(error)
        finally:
            connections.close_all()


def until(condition: Any, within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def queue_of(name: str) -> int:
    return len(store().waiters._queues.get(name, ()))


def test_waiter_is_woken_by_the_release(pushing: Spec) -> None:
    delays = []
    for _ in range(5):
        guard, log = locks.acquire("x"), []
        waiting = Waiting("x", log, hold=0)
        until(lambda: store().waiters.is_pushed("x"))
        time.sleep(0.3)
        released_at = time.perf_counter()
        guard.release()
        waiting.thread.join()
        delays.append(waiting.granted_at - released_at)
    assert sorted(delays)[2] < 0.1, delays


def test_release_of_another_process_wakes(pushing: Spec) -> None:
    if pushing.locks["BACKEND"].endswith("MemoryStore"):
        return  # knows no other process
    other, delays = conf.build_store("default"), []
    for _ in range(5):
        guard = locks.acquire("x")
        waiting = Waiting("x", [])
        until(lambda: store().waiters.is_pushed("x"))
        until(lambda: store().waiters._queues["x"][0]._woken.is_set() is False)
        time.sleep(0.2)
        released_at = time.perf_counter()
        other.release(guard.key, guard.owner)
        waiting.thread.join()
        delays.append(waiting.granted_at - released_at)
        guard.release()
    other.close()
    assert sorted(delays)[2] < 0.1, delays


def test_waiters_of_a_process_are_served_in_the_order_they_came(any_store: Spec) -> None:
    guard, log, waiting = locks.acquire("x"), [], []
    for number in range(6):
        waiting.append(Waiting("x", log, number))
        until(lambda number=number: queue_of("x") == number + 1)
    guard.release()
    for one in waiting:
        one.thread.join()
    assert log == list(range(6))


def test_newcomer_does_not_overtake_those_who_wait(any_store: Spec) -> None:
    guard, log = locks.acquire("x"), []
    first = Waiting("x", log, "first", hold=0.05)
    until(lambda: queue_of("x") == 1)
    guard.release()
    with locks.lock("x", wait=10):
        log.append("newcomer")
    first.thread.join()
    assert log == ["first", "newcomer"]


def test_waiter_that_gives_up_passes_its_turn_on(any_store: Spec) -> None:
    guard, log = locks.acquire("x"), []
    first = Waiting("x", log, "first", wait=1)
    until(lambda: queue_of("x") == 1)
    second = Waiting("x", log, "second")
    until(lambda: queue_of("x") == 2)
    first.thread.join()
    guard.release()
    second.thread.join()
    assert isinstance(log[0], LockNotAcquired)
    assert log[1] == "second"


def test_waiter_wakes_when_a_dead_holders_lease_expires(any_store: Spec) -> None:
    locks.acquire("x").release()  # the first connection takes a while on a busy machine
    guard, log = locks.acquire("x", ttl=1, renew=False), []
    started = time.perf_counter()
    waiting = Waiting("x", log, "late")
    waiting.thread.join()
    assert 0.6 < waiting.granted_at - started < 2.5
    assert log == ["late"]
    assert guard.lost


def test_nothing_is_left_of_waiters_who_gave_up(any_store: Spec) -> None:
    guard, log = locks.acquire("x"), []
    waiting = [Waiting("x", log, number, wait=0.1) for number in range(50)]
    for one in waiting:
        one.thread.join()
    assert len(log) == 50
    assert queue_of("x") == 0
    assert "x" not in store().waiters
    guard.release()
    locks.acquire("x").release()


def test_cancelled_tasks_leave_nothing_and_pass_their_turn_on(any_store: Spec) -> None:
    async def main() -> list[int]:
        guard = await locks.aacquire("x")
        granted: list[int] = []

        async def wait(number: int) -> None:
            async with locks.lock("x", wait=20):
                granted.append(number)

        tasks = [asyncio.create_task(wait(number)) for number in range(20)]
        while queue_of("x") < 20:
            await asyncio.sleep(0.01)
        for task in tasks[:-1]:
            task.cancel()
        results = await asyncio.gather(*tasks[:-1], return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await guard.arelease()
        await tasks[-1]
        return granted

    assert asyncio.run(main()) == [19]
    assert "x" not in store().waiters


def test_async_waiters_are_woken_without_a_thread_each(pushing: Spec) -> None:
    async def main() -> int:
        guard = await locks.aacquire("x")

        async def wait() -> None:
            async with locks.lock("x", wait=20):
                pass

        tasks = [asyncio.create_task(wait()) for _ in range(30)]
        while queue_of("x") < 30:
            await asyncio.sleep(0.01)
        threads = threading.active_count()
        await guard.arelease()
        await asyncio.gather(*tasks)
        return threads

    before = threading.active_count()
    assert asyncio.run(main()) - before < 10


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_polling_asks_a_few_times_a_second(kind: str, spec_of: Any, settings: Any) -> None:
    settings.LOCKS = {"default": spec_of(kind).locks}
    guard = locks.acquire("x")
    statements: list[float] = []
    log: list[Any] = []
    started = time.monotonic()

    def count(execute: Any, *args: Any) -> Any:
        statements.append(time.monotonic() - started)
        return execute(*args)

    def wait() -> None:
        with connections[store().database_alias].execute_wrapper(count), pytest.raises(LockNotAcquired):
            locks.acquire("x", wait=4)
        connections.close_all()
        log.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert log == [True]
    guard.release()
    assert len([moment for moment in statements if moment < 1]) <= 20
    assert len([moment for moment in statements if 2 <= moment < 4]) <= 2 * 5 + 1


def test_redis_is_not_asked_while_nothing_happens(spec_of: Any, settings: Any) -> None:
    settings.LOCKS = {"default": spec_of("redis").locks}
    import redis

    client = redis.Redis.from_url(store().location)
    guard, log = locks.acquire("x"), []
    waiting = [Waiting("x", log, number) for number in range(100)]
    until(lambda: queue_of("x") == 100 and store().waiters.is_pushed("x"))
    time.sleep(0.3)
    before = client.info("stats")["total_commands_processed"]
    time.sleep(2)
    asked = client.info("stats")["total_commands_processed"] - before
    guard.release()
    for one in waiting:
        one.thread.join()
    client.close()
    assert asked <= 40
    assert sorted(log) == list(range(100))


def test_one_subscriber_serves_many_names(spec_of: Any, settings: Any) -> None:
    settings.LOCKS = {"default": spec_of("redis").locks}
    import redis

    client = redis.Redis.from_url(store().location)
    names = [f"many:{number}" for number in range(500)]
    guards, log = [locks.acquire(name) for name in names], []
    waiting = [Waiting(name, log, name) for name in names]
    until(lambda: all(store().waiters.is_pushed(name) for name in names), within=20)
    subscribers = [entry for entry in client.client_list() if int(entry["sub"])]
    assert len(subscribers) == 1
    for guard in guards:
        guard.release()
    for one in waiting:
        one.thread.join()
    assert sorted(log) == sorted(names)
    until(lambda: not [entry for entry in client.client_list() if int(entry["sub"])], within=5)
    client.close()


def test_early_release_that_keeps_the_name_tells_its_waiters_the_new_end(any_store: Spec) -> None:
    guard, log = locks.acquire("x", ttl=60, at_least=0.6), []
    waiting = Waiting("x", log, "next")
    until(lambda: queue_of("x") == 1)
    released_at = time.perf_counter()
    guard.release()
    waiting.thread.join()
    assert waiting.granted_at - released_at < 2.5


def test_places_of_a_limited_lock_are_waited_for(any_store: Spec) -> None:
    log: list[Any] = []
    running: list[int] = []
    most: list[int] = []

    def run(number: int) -> None:
        with locks.lock("pool", limit=2, wait=20):
            running.append(number)
            most.append(len(running))
            time.sleep(0.05)
            running.remove(number)
        log.append(number)
        connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(run, range(6)))
    assert sorted(log) == list(range(6))
    assert max(most) <= 2


@pytest.mark.parametrize("wait", [1e-9, 0.001, None, 315_360_000])
def test_tiny_and_huge_waits_are_exact(memory_locks: None, wait: float | None) -> None:
    guard, log = locks.acquire("x", ttl=60), []
    if wait is not None and wait < 1:
        started = time.perf_counter()
        with ThreadPoolExecutor(1) as threads, pytest.raises(LockNotAcquired):
            threads.submit(locks.acquire, "x", wait=wait).result()
        assert time.perf_counter() - started < 0.5
        guard.release()
        return
    waiting = Waiting("x", log, "granted", wait=wait)
    until(lambda: queue_of("x") == 1)
    guard.release()
    waiting.thread.join(5)
    assert log == ["granted"]


def test_forked_queue_is_empty() -> None:
    waiters = Waiters()
    watch = waiters.watch("x")
    watch.__enter__()
    waiters.forget()
    assert "x" not in waiters
    watch.__exit__(None, None, None)
    assert MemoryStore("a", "forked").watch("x").is_first
