from __future__ import annotations

import asyncio
import gc

import pytest

from django_locks.tasks import see_through, see_through_here


class Request:
    """A request that takes until it is answered, and can tell what became of it."""

    def __init__(self, error=None):
        self.answer = asyncio.Event()
        self.error = error
        self.ended = ""

    async def __call__(self):
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "answered"
        if self.error:
            raise self.error
        return 42


@pytest.fixture(params=[see_through, see_through_here], ids=["in a task", "here"])
def seen_through(request):
    async def seen_through(coroutine):
        return await request.param(coroutine)

    return seen_through


async def started(seen_through, request):
    task = asyncio.ensure_future(seen_through(request()))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_result_of_a_request_is_returned(seen_through):
    async def main():
        request = Request()
        task = await started(seen_through, request)
        request.answer.set()
        return await task

    assert asyncio.run(main()) == 42


def test_request_that_never_waits_is_answered(seen_through):
    async def at_once():
        return 42

    assert asyncio.run(seen_through(at_once())) == 42


def test_error_of_a_request_is_raised(seen_through):
    async def main():
        request = Request(ValueError("no"))
        task = await started(seen_through, request)
        request.answer.set()
        await task

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_caller_waits_for_the_answer_and_is_cancelled_then(seen_through, times):
    async def main():
        request = Request()
        task = await started(seen_through, request)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        request.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert request.ended == "answered"

    asyncio.run(main())


def test_caller_cancelled_before_its_request_has_begun_lets_it_go_on():
    async def main():
        request = Request()
        request.answer.set()
        task = asyncio.ensure_future(see_through(request()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert request.ended == "answered"

    asyncio.run(main())


def test_failure_after_a_cancellation_is_not_reported_as_forgotten(seen_through):
    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        request = Request(ValueError("no"))
        task = await started(seen_through, request)
        task.cancel()
        request.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    told = []
    asyncio.run(main())
    assert told == []


def test_time_out_around_a_request_is_a_time_out(seen_through):
    async def main():
        request = Request()
        asyncio.get_running_loop().call_later(0.1, request.answer.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await seen_through(request())
        assert request.ended == "answered"
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(main())


def test_time_out_within_a_request_is_its_own():
    async def request():
        async with asyncio.timeout(0.01):
            await asyncio.sleep(10)

    async def main():
        with pytest.raises(TimeoutError):
            await see_through(request())
        assert asyncio.current_task().cancelling() == 0

    asyncio.run(main())


def test_end_of_the_loop_ends_request_and_caller():
    async def main():
        requests.append(Request())
        callers.append(await started(see_through, requests[0]))

    requests, callers = [], []
    asyncio.run(main())
    assert requests[0].ended == "cancelled"
    assert callers[0].cancelled()


def test_request_seen_through_here_is_answered_at_the_end_of_the_loop():
    async def main():
        asyncio.get_running_loop().call_later(0.05, request.answer.set)
        callers.append(await started(see_through_here_as_a_coroutine, request))

    async def see_through_here_as_a_coroutine(coroutine):
        return await see_through_here(coroutine)

    request, callers = Request(), []
    asyncio.run(main())
    assert request.ended == "answered"
    assert callers[0].cancelled()


@pytest.mark.parametrize("caller_too", [False, True])
def test_cancellation_of_what_a_request_awaits_reaches_it(seen_through, caller_too):
    async def request(future):
        try:
            await future
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def main():
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(seen_through(request(future)))
        await asyncio.sleep(0.01)
        if caller_too:
            task.cancel()
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    heard = []
    asyncio.run(main())
    assert heard == ["cancelled"]


def test_cancellation_between_two_awaits_lets_both_end(seen_through):
    async def request():
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        ended.append(await asyncio.get_running_loop().run_in_executor(None, lambda: 42))

    async def caller():
        await seen_through(request())

    async def main():
        nonlocal task
        task = asyncio.ensure_future(caller())
        with pytest.raises(asyncio.CancelledError):
            await task

    task, ended = None, []
    asyncio.run(main())
    assert ended == [42]


def test_closed_caller_closes_its_request():
    async def request():
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def caller():
        await see_through_here(request())

    async def main():
        running = caller()
        running.send(None)
        running.close()

    closed = []
    asyncio.run(main())
    assert closed == [True]
