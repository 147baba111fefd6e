"""The twins for asyncio: over every store where it is about leases, over memory where it is about tasks alone."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
import uuid

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_locks import (
    SKIPPED,
    AlreadyHeld,
    LeaseLost,
    LockNotAcquired,
    StoreUnavailable,
    locks,
    with_lock,
)
from tests.asyncs import store
from tests.conftest import STORES
from tests.faults import failing
from tests.loops import Holder, in_loop


@pytest.fixture(params=STORES)
def any_store(request, spec_of, settings):
    """Each store in turn, under a prefix that no other test has used."""
    settings.LOCKS = {"default": spec_of(request.param, KEY_PREFIX=uuid.uuid4().hex).locks}


# Taking and giving back


@in_loop
async def test_block_holds_the_lock_until_its_end(any_store):
    async with locks.lock("x") as guard:
        lease = await locks.aget("x")
        assert (lease.owner, lease.fence) == (guard.owner, guard.fence)
        assert [held.name async for held in locks.aleases("x")] == ["x"]
        guard.check()
    assert guard.released
    assert await locks.aget("x") is None


@in_loop
async def test_held_lock_is_refused_and_granted_after_its_release(any_store):
    async with Holder(locks.lock("x")) as other:
        assert await locks.atry_acquire("x") is None
        with pytest.raises(LockNotAcquired) as caught:
            await locks.aacquire("x", wait=0.05)
        assert caught.value.lease.owner == other.guard.owner
        assert caught.value.waited >= 0.05
        waiter = asyncio.ensure_future(locks.aacquire("x", wait=10))
        await asyncio.sleep(0.05)
        assert not waiter.done()
        other.stop.set()
        guard = await waiter
    assert guard.fence > other.guard.fence
    assert await guard.arelease() is True
    assert await guard.arelease() is False


@in_loop
async def test_lease_is_renewed_while_its_block_lasts(any_store):
    async with locks.lock("x", ttl=0.9) as guard:
        await asyncio.sleep(1.5)
        guard.check()
        assert (await locks.aget("x")).owner == guard.owner


@in_loop
async def test_extension_counts_from_now(any_store):
    async with locks.lock("x", ttl=5) as guard:
        await guard.aextend(40)
        assert guard.remaining > 35
        assert (await locks.aget("x")).remaining > 35


@in_loop
async def test_lease_broken_by_force_is_free_and_its_holder_is_told(any_store):
    guard = await locks.aacquire("x")
    assert await locks.aforce_release("x", fence=guard.fence + 1) is False
    assert await locks.aforce_release("x", fence=guard.fence) is True
    assert await locks.aforce_release("x") is False
    with pytest.raises(LeaseLost):
        await guard.aextend()
    assert await guard.arelease() is False


@in_loop
async def test_block_with_a_failing_body_releases_and_keeps_the_error(any_store):
    with pytest.raises(ValueError, match="body"):
        async with locks.lock("x"):
            raise ValueError("body")
    assert await locks.aget("x") is None


@in_loop
async def test_many_are_taken_all_or_none(any_store):
    async with locks.lock_many(["c", "a", "b"]) as guards:
        assert sorted(guards) == ["a", "b", "c"]
        assert [lease.name async for lease in locks.aleases()] == ["a", "b", "c"]
    async with Holder(locks.lock("b")):
        with pytest.raises(LockNotAcquired):
            async with locks.lock_many(["c", "a", "b"]):
                pytest.fail("b is held")
        assert [lease.name async for lease in locks.aleases()] == ["b"]


@in_loop
async def test_limit_lets_so_many_in(any_store):
    guards = [await locks.aacquire("x", limit=2) for _ in range(2)]
    assert sorted([lease.name async for lease in locks.aleases()]) == ["x#0", "x#1"]
    with pytest.raises(AlreadyHeld):
        await locks.aacquire("x", limit=2, wait=None)
    await guards[0].arelease()
    again = await locks.atry_acquire("x", limit=2)
    assert again.fence > guards[0].fence
    for guard in (again, guards[1]):
        assert await guard.arelease()


@in_loop
async def test_lease_is_handed_on_to_another_task(any_store):
    guard = await locks.aacquire("x", ttl=20)
    owner = guard.detach()
    with pytest.raises(LeaseLost):
        guard.check()

    async def go_on():
        adopted = await locks.aadopt("x", owner)
        assert adopted.fence == guard.fence
        with pytest.raises(AlreadyHeld):
            await locks.aacquire("x", wait=None)
        return await adopted.arelease()

    assert await asyncio.ensure_future(go_on()) is True
    with pytest.raises(LeaseLost):
        await locks.aadopt("x", owner)


@pytest.mark.usefixtures("memory_locks")
@in_loop
async def test_same_name_again_in_the_same_task_is_told_at_once():
    async with locks.lock("x"):
        assert await locks.atry_acquire("x") is None
        with pytest.raises(AlreadyHeld, match="task"):
            await locks.aacquire("x", wait=None)

        async def another():
            with pytest.raises(LockNotAcquired) as caught:
                await locks.aacquire("x", wait=0.01)
            assert not isinstance(caught.value, AlreadyHeld)

        await asyncio.ensure_future(another())
        with pytest.raises(AlreadyHeld):  # it would block the loop, and so the holder
            locks.acquire("x", wait=None)


@pytest.mark.usefixtures("memory_locks")
@in_loop
async def test_one_block_object_serves_many_tasks():
    lock = locks.lock("x", wait=10)
    inside = []

    async def work():
        async with lock as guard:
            assert not inside
            inside.append(guard)
            await asyncio.sleep(0.001)
            inside.remove(guard)
            return guard.fence

    fences = await asyncio.gather(*(work() for _ in range(20)))
    assert len(set(fences)) == 20


@pytest.mark.usefixtures("memory_locks")
@in_loop
async def test_unreachable_store_is_told_and_a_release_may_be_repeated():
    with failing(store(), "aacquire"), pytest.raises(StoreUnavailable):
        await locks.aacquire("x", wait=None)
    guard = await locks.aacquire("x")
    with failing(store(), "arelease", times=1):
        with pytest.raises(StoreUnavailable):
            await guard.arelease()
        assert await guard.arelease() is True


# The decorator


@pytest.mark.usefixtures("memory_locks")
@in_loop
async def test_decorated_coroutine_function_holds_its_lock():
    @with_lock("x:{tenant}")
    async def work(tenant: str) -> str:
        """Work."""
        await asyncio.sleep(0)
        return (await locks.aget(f"x:{tenant}")).name

    assert inspect.iscoroutinefunction(work)
    assert work.__doc__ == "Work."
    assert await work("a") == "x:a"
    assert await locks.aget("x:a") is None


@pytest.mark.usefixtures("memory_locks")
@in_loop
async def test_busy_decorated_coroutine_does_as_it_was_told():
    async def answer(busy):
        await asyncio.sleep(0)
        return busy.lease.name

    async def work():
        return "ran"

    async with Holder(locks.lock("x")):
        assert await with_lock("x")(work)() is SKIPPED
        assert await with_lock("x", on_busy=answer)(work)() == "x"
        assert await with_lock("x", on_busy=lambda busy: busy.name)(work)() == "x"
        with pytest.raises(LockNotAcquired):
            await with_lock("x", on_busy="raise")(work)()
    assert await with_lock("x")(work)() == "ran"


class Worker:
    pk = 7

    @with_lock("w:{self.pk}")
    async def method(self):
        return await locks.aget("w:7")

    @with_lock("w:static")
    @staticmethod
    async def static():
        return await locks.aget("w:static")

    @staticmethod
    @with_lock("w:inner")
    async def inner():
        return await locks.aget("w:inner")

    @classmethod
    @with_lock("w:class")
    async def of_class(cls):
        return await locks.aget("w:class")


@pytest.mark.usefixtures("memory_locks")
@in_loop
async def test_decorated_coroutine_methods_hold_their_locks():
    worker = Worker()
    for method in (worker.method, worker.static, worker.inner, worker.of_class):
        assert inspect.iscoroutinefunction(method)
        assert (await method()) is not None
    assert [lease async for lease in locks.aleases()] == []


# Event loops and threads


async def take_and_release(name="x"):
    async with locks.lock(name, wait=10):
        await locks.aget(name)


def test_event_loops_one_after_the_other_and_side_by_side_work(any_store):
    asyncio.run(take_and_release())
    asyncio.run(take_and_release())
    failures = []

    def in_thread():
        try:
            async_to_sync(take_and_release)()
        except BaseException as error:
            failures.append(error)
        finally:
            store().leave_thread()

    threads = [threading.Thread(target=in_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert locks.get("x") is None


def test_guard_of_one_loop_is_released_in_another(any_store):
    guard = asyncio.run(locks.aacquire("x"))
    assert asyncio.run(guard.arelease()) is True


def test_guard_taken_async_is_released_sync_and_vice_versa(any_store):
    guard = asyncio.run(locks.aacquire("x"))
    assert guard.release() is True
    guard = locks.acquire("x")
    assert asyncio.run(guard.arelease()) is True


@in_loop
async def test_waiting_blocks_neither_the_loop_nor_the_thread_of_sync_code(any_store):
    delays = []
    stop = asyncio.Event()

    async def tick():
        while not stop.is_set():
            before = time.monotonic()
            await sync_to_async(lambda: None)()
            delays.append(time.monotonic() - before)
            await asyncio.sleep(0.01)

    async def wait():
        async with locks.lock("ts", wait=10):
            granted.append(time.monotonic())

    granted = []
    ticker = asyncio.ensure_future(tick())
    async with Holder(locks.lock("ts")) as holder:
        waiters = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0.5)
        holder.stop.set()
        released = time.monotonic()
        await asyncio.gather(*waiters)
    stop.set()
    await ticker
    assert granted[0] - released < 0.5
    assert max(delays) < 0.2


# All at once


@pytest.mark.timeout(90)
@pytest.mark.parametrize("kind", ["memory", "redis", "postgresql"])
def test_hundreds_of_tasks_cancelled_at_random_leave_no_orphan_and_never_meet(spec_of, settings, kind):
    settings.LOCKS = {"default": spec_of(kind, KEY_PREFIX=uuid.uuid4().hex).locks}
    seconds = 20 if os.environ.get("LONG") == "1" else 4
    grants, cancellations = asyncio.run(_crowd(random.Random(8), seconds))
    assert grants > 50
    assert cancellations > 50
    assert list(locks.leases()) == []


async def _crowd(chance, seconds, tasks=200, names=50):
    """Let tasks fight for locks, and cancel them at random; return how many grants and cancellations there were."""
    inside, grants, cancellations = {}, [], []
    end = time.monotonic() + seconds

    async def hold(name):
        async with locks.lock(name, wait=chance.choice([0, 0.05, 5])) as guard:
            assert name not in inside, f"two hold {name}"
            inside[name] = guard
            try:
                grants.append(guard.fence)
                await asyncio.sleep(chance.random() * 0.02)
                guard.check()
            finally:
                del inside[name]

    async def one():
        while time.monotonic() < end:
            turn = asyncio.ensure_future(hold(f"name {chance.randrange(names)}"))
            if chance.random() < 0.5:
                await asyncio.wait([turn], timeout=chance.random() * chance.choice([0.003, 0.1]))
                turn.cancel()
            (outcome,) = await asyncio.gather(turn, return_exceptions=True)
            if isinstance(outcome, asyncio.CancelledError):
                cancellations.append(outcome)
            elif outcome is not None and not isinstance(outcome, LockNotAcquired):
                raise outcome

    await asyncio.gather(*(one() for _ in range(tasks)))
    assert inside == {}
    return len(grants), len(cancellations)
