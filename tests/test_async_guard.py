"""The corners of an ``async with``: stores that fail, and blocks that cannot begin or end as they should."""

from __future__ import annotations

import asyncio

import pytest

from django_locks import LockNotAcquired, conf, guard, locks
from tests.faults import failing
from tests.loops import Holder, in_loop

pytestmark = pytest.mark.usefixtures("memory_locks")


def store():
    return conf.entries("default").store


@in_loop
async def test_leaving_with_an_unreachable_store_only_warns(caplog):
    with failing(store(), "arelease"):
        async with locks.lock("x", ttl=0.5) as held:
            pass
    assert "could not be released" in caplog.text
    assert not held.released
    await held.arelease()


@in_loop
async def test_block_that_cannot_enforce_does_not_begin_and_is_released(monkeypatch):
    async def fail(self, using=None):
        raise KeyError("no such database")

    monkeypatch.setattr(guard.LockGuard, "aenforce", fail)
    with pytest.raises(KeyError, match="no such database"):
        async with locks.lock("x", enforce=True):
            pytest.fail("the block has begun")
    assert locks.get("x") is None


@in_loop
async def test_block_needs_a_task_which_can_be_cancelled():
    async def enter():
        async with locks.lock("x"):
            pytest.fail("the block has begun")

    def outside_of_a_task():
        try:
            enter().send(None)
        except BaseException as error:
            told.set_result(error)

    told = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(outside_of_a_task)
    error = await told
    assert isinstance(error, RuntimeError)
    assert "inside of a task" in str(error)


@in_loop
async def test_refusal_by_a_store_that_does_not_tell_who_holds_it():
    async with Holder(locks.lock("x")):
        with failing(store(), "aget"), pytest.raises(LockNotAcquired) as caught:
            await locks.aacquire("x")
    assert caught.value.lease is None


@in_loop
async def test_process_that_has_just_had_it_lets_others_go_first(monkeypatch):
    monkeypatch.setattr(store().waiters.rivals, "courtesy", lambda name: 0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with locks.lock("x", wait=1):
        assert 0.15 < loop.time() - began < 0.9
    async with locks.lock("x"):
        pass  # who does not wait takes what is free


@in_loop
async def test_block_whose_synchronous_caller_has_gone_on_is_released_at_once(monkeypatch):
    def gone(call):
        raise RuntimeError("CurrentThreadExecutor already quit or is broken")

    async with locks.lock("x"):
        monkeypatch.setattr(guard, "is_called_by_sync_code", lambda: True)
        monkeypatch.setattr(guard, "sync_to_async", gone)
    assert locks.get("x") is None


@in_loop
async def test_block_that_could_not_begin_is_not_taken_for_a_later_one(monkeypatch):
    async def fail(self, using=None):
        raise KeyError("no such database")

    block = locks.lock("x", enforce=True)
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(guard.LockGuard, "aenforce", fail)
        await block.__aenter__()
    assert len(block._guards) == 0
