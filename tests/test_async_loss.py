"""A task that loses its lease, or is cancelled: over every store where it is about leases."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest

from django_locks import LeaseLost, locks, signals, with_lock
from tests.asyncs import assert_not_cancelled, cancelled, slow
from tests.conftest import STORES
from tests.loops import Holder, eventually, in_loop


@pytest.fixture(params=STORES)
def any_store(request, spec_of, settings):
    """Each store in turn, under a prefix that no other test has used."""
    settings.LOCKS = {"default": spec_of(request.param, KEY_PREFIX=uuid.uuid4().hex).locks}


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
