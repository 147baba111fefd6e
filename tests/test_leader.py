from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from contextlib import ExitStack
from itertools import islice
from multiprocessing import connection
from queue import SimpleQueue

import pytest

from django_locks import AlreadyHeld, LeaseLost, LockNotAcquired, StoreUnavailable, conf, locks
from django_locks.leader import _pauses
from tests.crew import process
from tests.faults import failing

TTL = 1.5


@pytest.fixture(autouse=True)
def _memory(memory_locks):
    pass


def in_thread(call, *args):
    outcome = SimpleQueue()

    def target():
        try:
            outcome.put(call(*args))
        except BaseException as error:
            outcome.put(error)

    threading.Thread(target=target, daemon=True).start()
    return lambda: outcome.get(timeout=20)


def test_work_runs_under_the_lock_and_its_result_is_returned():
    leader = locks.leader("lead")

    def work(guard):
        return leader.leading, locks.get("lead").fence == guard.fence

    assert not leader.leading
    assert leader.run(work) == (True, True)
    assert not leader.leading
    assert locks.get("lead") is None


def test_error_of_the_work_is_raised_and_frees():
    with pytest.raises(KeyError, match="body"):
        locks.leader("lead").run(lambda guard: {}["body"])
    assert locks.get("lead") is None


def test_refusal_of_another_lock_in_the_work_is_its_error():
    def work(guard):
        with in_other_thread_held("other"):
            locks.acquire("other")

    with pytest.raises(LockNotAcquired, match="other"):
        locks.leader("lead").run(work)


class in_other_thread_held:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.guard = in_thread(locks.acquire, self.name)()

    def __exit__(self, *error):
        self.guard.release()


def test_one_thread_cannot_wait_for_itself():
    leader = locks.leader("lead")
    with locks.lock("lead"), pytest.raises(AlreadyHeld):
        leader.run(lambda guard: None)


def test_candidate_waits_for_the_leader_and_follows_at_once():
    guard = locks.acquire("lead")
    result = in_thread(locks.leader("lead").run, lambda guard: time.monotonic())
    time.sleep(1.2)  # longer than one round of the candidate
    freed = time.monotonic()
    guard.release()
    assert freed <= result() < freed + 1


def test_leader_that_lost_its_lease_steps_down_and_leads_again(caplog):
    caplog.set_level(logging.INFO, "django_locks")
    leader = locks.leader("lead", ttl=TTL)
    fences, lost = [], SimpleQueue()

    def work(guard):
        fences.append(guard.fence)
        if len(fences) == 1:
            locks.force_release("lead")
            started = time.monotonic()
            assert leader.wait(20) is False
            assert time.monotonic() - started < TTL
            return "overlooked"
        return "led"

    assert locks.leader("other", on_lost=lost.put).run(lambda guard: "fine") == "fine"
    assert leader.run(work) == "led"
    assert fences[1] > fences[0]
    assert any("Leads 'lead' no more" in record.getMessage() for record in caplog.records)


def test_loss_of_another_lease_is_the_works_own_error():
    def work(guard):
        with locks.lock("other"):
            locks.force_release("other")

    with pytest.raises(LeaseLost, match="'other'"):
        locks.leader("lead").run(work)


def test_loss_is_told_to_the_callable():
    told = SimpleQueue()
    leader = locks.leader("lead", ttl=TTL, on_lost=told.put)
    guards = []

    def work(guard):
        guards.append(guard)
        if len(guards) == 1:
            locks.force_release("lead")
            leader.wait(20)
            guard.check()

    leader.run(work)
    assert told.get(timeout=5) is guards[0]
    assert told.empty()


def test_wait_lasts_as_long_as_told_while_it_leads():
    leader = locks.leader("lead")

    def work(guard):
        start = time.monotonic()
        return leader.wait(0.2), time.monotonic() - start

    still, took = leader.run(work)
    assert still
    assert 0.2 <= took < 2


def test_stopped_leader_steps_down():
    leader = locks.leader("lead")
    leads = threading.Event()

    def work(guard):
        leads.set()
        return leader.wait(60)

    result = in_thread(leader.run, work)
    assert leads.wait(10)
    leader.stop()
    assert result() is False
    assert locks.get("lead") is None


def test_stopped_candidate_gives_up():
    leader = locks.leader("lead")
    with locks.lock("lead"):
        result = in_thread(leader.run, lambda guard: "led")
        leader.stop()
        assert result() is None


def test_unreachable_store_is_asked_again(caplog):
    leader = locks.leader("lead")
    with failing(conf.entries("default").store, "acquire"):
        result = in_thread(leader.run, lambda guard: "led")
        deadline = time.monotonic() + 10
        while not any("tries again" in record.getMessage() for record in caplog.records):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert result() == "led"


def test_unreachable_store_in_the_work_is_its_error():
    def work(guard):
        with failing(conf.entries("default").store, "acquire"):
            locks.acquire("other")

    with pytest.raises(StoreUnavailable):
        locks.leader("lead").run(work)


@pytest.mark.parametrize("bad", [{"ttl": 0}, {"ttl": "long"}, {"on_lost": 5}, {"max_hold": -1}])
def test_bad_option_is_refused_at_once(bad):
    with pytest.raises((ValueError, TypeError)):
        locks.leader("lead", **bad)


def test_async_work_is_cancelled_at_the_loss_and_runs_again():
    leader = locks.leader("lead", ttl=TTL)
    fences, cancelled = [], []

    async def work(guard):
        fences.append(guard.fence)
        if len(fences) == 2:
            return leader.leading
        await locks.aforce_release("lead")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(guard.lost)
            raise

    assert asyncio.run(leader.arun(work)) is True
    assert cancelled == [True]
    assert fences[1] > fences[0]


def test_async_candidate_is_stopped_by_cancelling():
    async def main():
        async with locks.lock("lead"):
            task = asyncio.ensure_future(locks.leader("lead").arun(asyncio.sleep))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_async_unreachable_store_is_asked_again():
    async def work(guard):
        return "led"

    async def main():
        with failing(conf.entries("default").store, "acquire"):
            task = asyncio.ensure_future(locks.leader("lead").arun(work))
            await asyncio.sleep(0.2)
            assert not task.done()
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(main()) == "led"


def lead(pipe, mode):
    """Lead until the end, and tell."""
    leader = locks.leader("lead", ttl=TTL)
    locks.get("lead")
    pipe.send("ready")

    def work(guard):
        pipe.send(("leads", guard.fence))
        try:
            while leader.wait(0.1):
                pass
        finally:
            lease = locks.get("lead")
            pipe.send(("ends", lease is not None and lease.fence == guard.fence))

    async def async_work(guard):
        pipe.send(("leads", guard.fence))
        try:
            await asyncio.sleep(60)
        finally:
            lease = await locks.aget("lead")
            pipe.send(("ends", lease is not None and lease.fence == guard.fence))

    asyncio.run(leader.arun(async_work)) if mode == "async" else leader.run(work)


def told(child, seconds=20):
    assert child.pipe.poll(seconds)
    return child.pipe.recv()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_another_process_follows_within_one_ttl(mode, spec_of):
    spec = spec_of("valkey")
    with ExitStack() as stack:
        candidates = {child.pipe: child for child in [stack.enter_context(process(spec, lead, mode)) for _ in range(3)]}
        for child in candidates.values():
            assert told(child) == "ready"
        leader, fence = next_leader(candidates)
        assert not connection.wait(candidates, 0.5), "there is one leader"
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
            if number != signal.SIGSTOP:
                del candidates[leader.pipe]
            start = time.monotonic()
            os.kill(leader.pid, number)
            follower, higher = next_leader(candidates)
            assert time.monotonic() - start < TTL + 0.5
            assert higher > fence
            if number == signal.SIGTERM:
                assert told(leader) == ("ends", True), "the work's finally runs under the lease"
                leader.join(10)
                assert leader.exitcode == 143
            if number == signal.SIGSTOP:
                os.kill(leader.pid, signal.SIGCONT)
                assert told(leader)[0] == "ends", "the paused one learns that it is leader no more"
            leader, fence = follower, higher


def next_leader(candidates):
    [pipe] = connection.wait(candidates, 20)
    kind, fence = pipe.recv()
    assert kind == "leads"
    return candidates[pipe], fence


def test_loss_of_an_earlier_term_does_not_end_the_next_one():
    leader = locks.leader("lead")
    leader._lost(None)  # told late, when the next term is to begin
    assert leader.run(lambda guard: guard.lost) is False


def test_pauses_of_a_candidate_without_a_store_grow_up_to_ten_seconds():
    assert list(islice(_pauses(), 7)) == [0.5, 1, 2, 4, 8, 10, 10]
