from __future__ import annotations

import asyncio
import gc

import pytest

from django_locks.tasks import see_through


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


async def started(request):
    task = asyncio.ensure_future(see_through(request()))
    for _ in range(3):
        await asyncio.sleep(0)
    return task


def test_result_of_a_request_is_returned():
    async def main():
        request = Request()
        task = await started(request)
        request.answer.set()
        return await task

    assert asyncio.run(main()) == 42


def test_request_that_never_waits_is_answered():
    async def at_once():
        return 42

    assert asyncio.run(see_through(at_once())) == 42


def test_error_of_a_request_is_raised():
    async def main():
        request = Request(ValueError("no"))
        task = await started(request)
        request.answer.set()
        await task

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_caller_waits_for_the_answer_and_is_cancelled_then(times):
    async def main():
        request = Request()
        task = await started(request)
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


def test_failure_after_a_cancellation_is_not_reported_as_forgotten():
    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        request = Request(ValueError("no"))
        task = await started(request)
        task.cancel()
        request.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    told = []
    asyncio.run(main())
    assert told == []


def test_time_out_around_a_request_is_a_time_out():
    async def main():
        request = Request()
        asyncio.get_running_loop().call_later(0.1, request.answer.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await see_through(request())
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
        callers.append(await started(requests[0]))

    requests, callers = [], []
    asyncio.run(main())
    assert requests[0].ended == "cancelled"
    assert callers[0].cancelled()
