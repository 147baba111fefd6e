"""Tasks that are cancelled, and stores that are slow, for tests of asyncio."""

from __future__ import annotations

import asyncio

import pytest

from django_locks import (
    conf,
)
from tests.faults import patched


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


async def assert_not_cancelled():
    assert asyncio.current_task().cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
