"""Queries that only the holder can send."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from django_locks import LeaseLost, locks
from django_locks.fencing import Enforcement
from tests.notes import notes, use, write


@pytest.fixture(params=["sqlite", "postgresql"])
def alias(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> str:
    return use(request.param, spec_of, settings)


def lose(name: str) -> None:
    """Let the store refuse the next renewal of this process."""
    from django_locks.renewal import keeper

    for held in keeper._held():
        if held.key == name:
            held.refused()


def test_enforced_block_stops_at_its_next_query(alias):
    with pytest.raises(LeaseLost, match="'x'"), locks.lock("x", enforce=True):
        write(alias, "a")
        lose("x")
        write(alias, "b")
    assert notes(alias) == ["a"]
    assert connections[alias].execute_wrappers == []


def test_every_lock_of_an_enforced_block_is_enforced(alias):
    with pytest.raises(LeaseLost, match="'y'"), locks.lock_many(["x", "y", "z"], enforce=True):
        write(alias, "a")
        lose("y")
        write(alias, "b")
    assert notes(alias) == ["a"]
    assert connections[alias].execute_wrappers == []


def test_decorated_function_can_be_enforced(alias):
    @locks.with_lock("x", enforce=True)
    def job() -> None:
        write(alias, "a")
        lose("x")
        write(alias, "b")

    with pytest.raises(LeaseLost):
        job()
    assert notes(alias) == ["a"]


def test_without_enforcement_the_body_goes_on(alias):
    with pytest.raises(LeaseLost), locks.lock("x"):
        lose("x")
        write(alias, "b")
    assert notes(alias) == ["b"]


def test_bare_guards_are_not_enforced_by_option(memory_locks):
    for take in (locks.try_acquire, locks.acquire):
        with pytest.raises(TypeError, match="enforce"):
            take("x", enforce=True)
    with pytest.raises(TypeError, match="enforce"):
        locks.lock("x", enforce=1)


def test_enforcement_that_cannot_begin_gives_the_lock_back(memory_locks):
    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(enter_in_a_task())
    assert locks.get("x") is None


async def enter_in_a_task() -> None:
    with locks.lock("x", enforce=True):
        pytest.fail("entered")


def test_lost_holder_can_still_undo(alias):
    # Django goes on after a savepoint whose undoing has failed, and would commit what it should not.
    with pytest.raises(LeaseLost), locks.lock("x", enforce=True), transaction.atomic(using=alias):
        write(alias, "outer")
        with pytest.raises(LeaseLost), transaction.atomic(using=alias):
            write(alias, "inner")
            lose("x")
            write(alias, "late")
    assert notes(alias) == ["outer"]


def test_wrapper_of_the_body_is_taken_away_by_the_body_alone(alias):
    guard = locks.acquire("x")
    with connections[alias].execute_wrapper(lambda execute, *args: execute(*args)):
        guard.enforce()
    assert len(connections[alias].execute_wrappers) == 1
    lose("x")
    with pytest.raises(LeaseLost):
        write(alias, "b")
    guard.release()
    assert connections[alias].execute_wrappers == []


def test_handed_on_lease_is_enforced_no_more(alias):
    guard = locks.acquire("x")
    guard.enforce()
    owner = guard.detach()
    write(alias, "a")
    locks.adopt("x", owner).release()


def test_dropped_guard_is_dropped_although_it_was_enforced(alias):
    with pytest.warns(ResourceWarning):
        locks.acquire("x", ttl=5).enforce()
        gc.collect()
        write(alias, "a")
    assert connections[alias].execute_wrappers == []


def test_enforced_task_stops_at_its_next_query_and_others_do_not(alias):
    asyncio.run(two_tasks(alias))
    assert notes(alias) == ["first", "other"]
    assert not any(connection.execute_wrappers for connection in connections.all(initialized_only=True))


async def two_tasks(alias: str) -> None:
    lost, done = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await lost.wait()
        await sync_to_async(write)(alias, "other")
        done.set()

    task = asyncio.create_task(other())
    with pytest.raises(LeaseLost):
        async with locks.lock("x", enforce=True) as guard:
            await sync_to_async(write)(alias, "first")
            guard._body = None  # without the cancellation: the query itself is refused
            await sync_to_async(lose)("x")
            lost.set()
            await done.wait()
            await sync_to_async(write)(alias, "late")
    await task
    await sync_to_async(connections.close_all)()


def test_decorated_coroutine_can_be_enforced(alias):
    @locks.with_lock("x", enforce=True)
    async def job() -> int:
        await sync_to_async(write)(alias, "a")
        wrappers = await sync_to_async(lambda: len(connections[alias].execute_wrappers))()
        await sync_to_async(connections.close_all)()
        return wrappers

    assert asyncio.run(job()) == 1
    assert notes(alias) == ["a"]


def test_enforcement_costs_two_microseconds_a_query(memory_locks):
    with locks.lock("x") as guard:
        connection = connections["default"]
        guard.enforce("default")
        wrapper = connection.execute_wrappers[0]

        def execute(*args: object) -> None:
            return None

        def cost(call: Any) -> float:
            start = time.thread_time()
            for _ in range(1000):
                call("SELECT 1", None, False, None)
            return (time.thread_time() - start) / 1000

        with_it, without, rounds = 1.0, 1.0, 0
        tracer = sys.gettrace()
        sys.settrace(None)  # coverage would be the greater part of it
        while rounds < 20 or (with_it - without >= 2e-6 and rounds < 2000):  # others work on the same cores
            with_it = min(with_it, cost(lambda *args: wrapper(execute, *args)))
            without = min(without, cost(lambda *args: execute(*args)))
            rounds += 1
        sys.settrace(tracer)
    assert with_it - without < 2e-6


def test_enforcement_may_be_lifted_twice_and_outlive_its_guard(alias):
    guard = locks.acquire("x")
    enforcement = Enforcement(guard, alias)
    guard.release()
    with pytest.raises(LeaseLost):
        write(alias, "a")
    del guard
    gc.collect()
    write(alias, "b")
    enforcement.lift()
    enforcement.lift()
    assert notes(alias) == ["b"]
    assert connections[alias].execute_wrappers == []
