"""What a user's type checker sees; checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, assert_type

from django.core.management.base import BaseCommand

from django_locks import LockGuard, LockNotAcquired, Skipped, locks, with_lock

T = TypeVar("T")


def busy_number(busy: LockNotAcquired) -> float:
    return busy.waited


async def busy_later(busy: LockNotAcquired) -> float:
    return busy.waited


@with_lock("import:{tenant}", ttl=60, wait=5)
def skipping(tenant: str, *, full: bool = False) -> int:
    return 1


@with_lock("x", on_busy="raise")
def raising(tenant: str) -> int:
    return 1


@with_lock("x", on_busy=busy_number)
def calling(tenant: str) -> int:
    return 1


@with_lock(name=lambda tenant: f"n:{tenant}", using="reports")
def named(tenant: str) -> int:
    return 1


@with_lock
def bare(tenant: str) -> int:
    return 1


@locks.using("reports").with_lock("x")
def elsewhere(tenant: str) -> int:
    return 1


assert_type(skipping("a", full=True), int | Skipped)
assert_type(raising("a"), int)
assert_type(calling("a"), int | float)
assert_type(named("a"), int | Skipped)
assert_type(bare("a"), int | Skipped)
assert_type(elsewhere("a"), int | Skipped)

skipping(1)  # type: ignore[arg-type]
raising("a", "b")  # type: ignore[call-arg]
with_lock("x", on_busy="wait")  # type: ignore[call-overload]
with_lock("x", ttl="long")  # type: ignore[call-overload]
with_lock(5)  # type: ignore[call-overload]


@with_lock("x")
async def skipping_async(tenant: str) -> bytes:
    return b""


@with_lock("x", on_busy="raise")
async def raising_async(tenant: str) -> bytes:
    return b""


@with_lock("x", on_busy=busy_later)
async def calling_async(tenant: str) -> bytes:
    return b""


@with_lock
async def bare_async(tenant: str) -> bytes:
    return b""


async def awaited() -> None:
    assert_type(await skipping_async("a"), bytes | Skipped)
    assert_type(await raising_async("a"), bytes)
    assert_type(await calling_async("a"), bytes | float)
    assert_type(await bare_async("a"), bytes | Skipped)


@with_lock("x", on_busy=busy_later)  # type: ignore[arg-type]
def never_awaited(tenant: str) -> int:
    return 1


@with_lock("nightly")
class Command(BaseCommand):
    attempts = 3


@with_lock
class Bare(BaseCommand):
    attempts = 3


assert_type(Command.attempts, int)
assert_type(Bare().attempts, int)


class Invoice:
    @with_lock("invoice:{self.pk}")
    def method(self, number: int) -> int:
        return number

    @with_lock("x")
    async def coroutine(self, number: int) -> int:
        return number

    @staticmethod
    @with_lock("x")
    def below_static(number: int) -> int:
        return number

    @with_lock("x")
    @staticmethod
    def above_static(number: int) -> int:
        return number

    @classmethod
    @with_lock("x")
    def below_class(cls, number: int) -> int:
        return number

    @with_lock("x")
    @classmethod
    def above_class(cls, number: int) -> int:
        return number


assert_type(Invoice().method(1), int | Skipped)
assert_type(Invoice.below_static(1), int | Skipped)
assert_type(Invoice.above_static(1), int | Skipped)
assert_type(Invoice.below_class(1), int | Skipped)
assert_type(Invoice().above_class(1), int | Skipped)


class Task:
    """As those of ``django.tasks``."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func

    def enqueue(self, *args: Any) -> None: ...


assert_type(with_lock("x")(Task(bare)), Task)
assert_type(with_lock(Task(bare)), Task)


def report(result: int | Skipped) -> int:
    return result if not isinstance(result, Skipped) else 0


def led(guard: LockGuard) -> int:
    return guard.fence


async def led_async(guard: LockGuard) -> int:
    return guard.fence


def generic(function: Callable[[str], T]) -> Callable[[str], T | Skipped]:
    return with_lock("x")(function)


def leads() -> Awaitable[int]:
    leader = locks.leader("x", ttl=5)
    assert_type(leader.run(led), int | None)
    return leader.arun(led_async)
