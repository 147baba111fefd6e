"""K27: what happens to coroutines, generators, names and results under the decorator."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from django_locks import locks, with_lock

pytestmark = pytest.mark.usefixtures("memory_locks")


def body() -> bool:
    return locks.try_acquire("x") is None


async def coroutine() -> bool:
    await asyncio.sleep(0)
    return await locks.atry_acquire("x") is None


class Callable:
    def __call__(self) -> bool:
        return body()


@pytest.mark.parametrize(
    "call",
    [
        with_lock("x")(body),
        with_lock("x")(functools.partial(body)),
        with_lock("x")(Callable()),
        lambda: asyncio.run(with_lock("x")(coroutine)()),
    ],
    ids=["function", "partial", "callable object", "coroutine function"],
)
def test_lease_covers_the_run_of_the_body(call: Any) -> None:
    """B108"""
    assert call() is True
    assert locks.get("x") is None


def test_coroutine_that_is_broken_off_frees_the_lock() -> None:
    """B108"""

    @with_lock("x")
    async def work() -> None:
        await asyncio.sleep(60)

    async def break_off() -> None:
        task = asyncio.create_task(work())
        while await locks.aget("x") is None:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(break_off())
    assert locks.get("x") is None


def test_decorated_functions_are_two_entries_of_a_registry_by_name() -> None:
    """B109"""
    registry: dict[str, Any] = {}

    def register(function: Any) -> Any:
        return registry.setdefault(f"{function.__module__}.{function.__qualname__}", function)

    @register
    @with_lock
    def first() -> str:
        return "first"

    @register
    @with_lock
    def second() -> str:
        return "second"

    assert len(registry) == 2
    assert [call() for call in registry.values()] == ["first", "second"]
