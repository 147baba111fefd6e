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
    conf,
    locks,
    signals,
    with_lock,
)
from tests.conftest import STORES
from tests.faults import failing, patched
from tests.loops import Holder, eventually, in_loop


@pytest.fixture(params=STORES)
def any_store(request, spec_of, settings):
    """Each store in turn, under a prefix that no other test has used."""
    settings.LOCKS = {"default": spec_of(request.param, KEY_PREFIX=uuid.uuid4().hex).locks}


def store():
    return conf.entries("default").store


def slow(verb, seconds):
    """Let a verb for asyncio answer late."""

    async def late(original, *args, **kwargs):
        answer = await original(*args, **kwargs)
        await asyncio.sleep(seconds)
        return answer

    return patched(store(), verb, late)


async def cancelled(coroutine, after):
    """Cancel a coroutine so many seconds (or rounds of the loop, if negative) after it began."""
    task = asyncio.ensure_future(coroutine)
    if after < 0:
        for _ in range(-after):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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


# A lease that is lost


@in_loop
async def test_lost_lease_cancels_the_body_and_surfaces_as_such(any_store):
    told = []
    with pytest.raises(LeaseLost, match="'x'") as caught:
        async with locks.lock("x", ttl=1.5, on_lost=told.append) as guard:
            assert await locks.aforce_release("x")
            await asyncio.sleep(30)
            pytest.fail("the body went on")
    assert caught.value.guard is guard
    assert guard.lost
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)
    await eventually(lambda: told == [guard])


@pytest.fixture
def losing(memory_locks):
    """Return the call that loses the lease of a guard, as the renewing thread does."""

    def lose(guard):
        thread = threading.Thread(target=guard.refused)
        thread.start()
        thread.join()

    return lose


async def assert_not_cancelled():
    assert asyncio.current_task().cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)


@in_loop
async def test_body_that_ends_before_it_is_told_leaves_no_cancellation_behind(losing):
    with pytest.raises(LeaseLost):
        async with locks.lock("x") as guard:
            losing(guard)
    await assert_not_cancelled()


@in_loop
async def test_body_that_catches_the_cancellation_ends_in_the_loss(losing):
    with pytest.raises(LeaseLost):
        async with locks.lock("x") as guard:
            losing(guard)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(30)
    await assert_not_cancelled()


@in_loop
async def test_cancellation_after_the_loss_was_caught_is_not_swallowed(losing):
    async def work():
        async with locks.lock("x") as guard:
            losing(guard)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(30)
            asyncio.current_task().cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(work())


@in_loop
async def test_body_that_fails_by_the_cancellation_keeps_its_error_with_a_note(losing):
    with pytest.raises(KeyError) as caught:
        async with locks.lock("x") as guard:
            losing(guard)
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise KeyError("body") from None
    assert "'x'" in caught.value.__notes__[0]
    await assert_not_cancelled()


@in_loop
async def test_lost_before_the_block_begins_cancels_at_its_first_await(losing):
    guard = await locks.aacquire("x")
    losing(guard)
    with pytest.raises(LeaseLost):
        async with guard:
            await asyncio.sleep(30)
            pytest.fail("the body went on")
    await assert_not_cancelled()


@pytest.mark.parametrize("loss_first", [True, False])
@in_loop
async def test_time_out_at_the_moment_of_the_loss_is_a_time_out(losing, loss_first):
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(None) as limit:
            async with locks.lock("x") as guard:
                if loss_first:
                    losing(guard)
                limit.reschedule(0)
                if not loss_first:
                    losing(guard)
                await asyncio.sleep(30)
    assert "'x'" in caught.value.__cause__.__notes__[0]
    await assert_not_cancelled()


@in_loop
async def test_time_out_within_the_block_is_its_own(losing):
    async with locks.lock("x"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
    with pytest.raises(LeaseLost):
        async with locks.lock("x") as guard:
            async with asyncio.timeout(30):
                losing(guard)
                await asyncio.sleep(30)
    await assert_not_cancelled()


@pytest.mark.parametrize("loss_first", [True, False])
@in_loop
async def test_cancellation_at_the_moment_of_the_loss_is_a_cancellation(losing, loss_first):
    async def work():
        async with locks.lock("x") as guards["x"]:
            await asyncio.sleep(30)

    guards = {}
    task = asyncio.ensure_future(work())
    await eventually(lambda: guards)
    if loss_first:
        losing(guards["x"])
    task.cancel()
    if not loss_first:
        losing(guards["x"])
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert "'x'" in caught.value.__notes__[0]


@in_loop
async def test_group_that_fails_at_the_moment_of_the_loss_fails_by_its_own_error(losing):
    async def work():
        async with locks.lock("x") as guards["x"]:
            await asyncio.sleep(30)

    async def fail():
        await eventually(lambda: guards)
        losing(guards["x"])
        raise KeyError("sibling")

    guards = {}
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(fail())
    assert [type(error) for error in caught.value.exceptions] == [KeyError]


@in_loop
async def test_group_in_the_body_is_ended_by_the_loss(losing):
    ended = []

    async def child():
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    with pytest.raises(LeaseLost):
        async with locks.lock("x") as guard:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                group.create_task(child())
                await asyncio.sleep(0)
                losing(guard)
                await asyncio.sleep(30)
    assert ended == [True, True]
    await assert_not_cancelled()


@in_loop
async def test_loss_of_one_or_all_of_many_is_one_error(losing):
    for lost in (["a"], ["b"], ["a", "b"]):
        with pytest.raises(LeaseLost) as caught:
            async with locks.lock_many(["a", "b"]) as guards:
                for name in lost:
                    losing(guards[name])
                await asyncio.sleep(30)
        assert caught.value.name in lost
        await assert_not_cancelled()
        assert [lease.name async for lease in locks.aleases()] == lost
        for name in lost:
            await locks.aforce_release(name)


@in_loop
async def test_released_guard_is_not_lost_later(losing):
    async with locks.lock("x") as guard:
        assert await guard.arelease()
        losing(guard)
        await asyncio.sleep(0.01)
    assert not guard.lost


# Cancellation


@pytest.mark.parametrize("after", [-1, -2, -3, 0.02])
@in_loop
async def test_cancelled_take_leaves_no_orphan(any_store, after):
    for take in (locks.atry_acquire("x"), locks.aacquire("x", wait=5), locks.lock("x").__aenter__()):
        with slow("aacquire", 0.05):
            await cancelled(take, after)
        assert await locks.aget("x") is None


@pytest.mark.parametrize("after", [-1, -2, 0.02])
@in_loop
async def test_cancelled_take_of_many_leaves_no_orphan(any_store, after):
    async def take():
        async with locks.lock_many(["a", "b", "c"]):
            pytest.fail("taken")

    with slow("aacquire", 0.05):
        await cancelled(take(), after)
    assert [lease.name async for lease in locks.aleases()] == []


@pytest.mark.parametrize("after", [-1, -2, -5, 0.05])
@in_loop
async def test_cancelled_release_frees_or_may_be_repeated(any_store, after):
    guard = await locks.aacquire("c", ttl=30)
    with slow("arelease", 0.1):
        await cancelled(guard.arelease(), after)
    if guard.released:
        assert await locks.aget("c") is None
    else:
        assert (await locks.aget("c")).owner == guard.owner
        assert await guard.arelease() is True
    assert await locks.aget("c") is None


@in_loop
async def test_release_cancelled_before_it_began_leaves_the_lease_held(any_store):
    guard = await locks.aacquire("c", ttl=30)
    task = asyncio.ensure_future(guard.arelease())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    guard.check()
    assert await guard.arelease() is True


@in_loop
async def test_block_cancelled_while_it_is_left_has_released(any_store):
    async def work():
        async with locks.lock("x"):
            entered.set()

    entered = asyncio.Event()
    with slow("arelease", 0.1):
        task = asyncio.ensure_future(work())
        await entered.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await locks.aget("x") is None


@in_loop
async def test_cancelled_waiters_leave_the_holder_and_the_others_alone(any_store):
    granted = []

    async def wait():
        async with locks.lock("ch", wait=30) as guard:
            granted.append(guard)

    async with Holder(locks.lock("ch")) as holder:
        waiters = [asyncio.ensure_future(wait()) for _ in range(100)]
        for number, waiter in enumerate(waiters[:99]):
            if number % 10 == 0:
                await asyncio.sleep(0.005)
            waiter.cancel()
        ended = await asyncio.gather(*waiters[:99], return_exceptions=True)
        assert {type(end) for end in ended} == {asyncio.CancelledError}
        holder.guard.check()
        assert (await locks.aget("ch")).owner == holder.guard.owner
        assert granted == []
        holder.stop.set()
        await waiters[99]
    assert len(granted) == 1
    assert granted[0].released
    assert await locks.aget("ch") is None


@in_loop
async def test_wait_for_that_times_out_leaves_no_orphan(any_store):
    with slow("aacquire", 0.1):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(locks.aacquire("x"), 0.03)
    assert await locks.aget("x") is None


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


@in_loop
async def test_lost_lease_ends_a_decorated_coroutine(losing):
    @with_lock("x")
    async def work():
        losing(guards[0])
        await asyncio.sleep(30)

    guards = []

    def remember(guard, **kwargs):
        guards.append(guard)

    signals.lease_acquired.connect(remember)
    try:
        with pytest.raises(LeaseLost):
            await work()
    finally:
        signals.lease_acquired.disconnect(remember)
    await assert_not_cancelled()


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
