"""Functions that workers find by their dotted path."""

from __future__ import annotations

from typing import Any

from django_locks import locks, with_lock


def held(name: str) -> bool:
    return locks.get(name) is not None


@with_lock("job:{number}")
def skipping(number: int) -> bool:
    return held(f"job:{number}")


@with_lock("job:raised", on_busy="raise")
def raised() -> str:
    return "ran"


@with_lock("job:async")
async def asynchronous() -> Any:
    return await locks.aget("job:async") is not None


@with_lock("job:counted", at_least=0.9)
def counted(path: str) -> bool:
    with open(path, "a") as marks:
        marks.write("x")
    return True
