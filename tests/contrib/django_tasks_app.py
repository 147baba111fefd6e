"""Tasks of ``django.tasks``, or of its backport on an older Django."""

from __future__ import annotations

from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from django_locks import locks, with_lock


@task
@with_lock("tasks:{number}")
def below(number: int) -> bool:
    return locks.get(f"tasks:{number}") is not None


@with_lock("tasks:{number}")
@task(priority=5)
def above(number: int) -> bool:
    return locks.get(f"tasks:{number}") is not None


@with_lock
@task(takes_context=True)
def bare(context: Any) -> bool:
    return locks.get("tests.contrib.django_tasks_app.bare") is not None


@task
@with_lock("tasks:async")
async def asynchronous() -> bool:
    return await locks.aget("tasks:async") is not None


@with_lock("tasks:raised", on_busy="raise")
@task
def raised() -> None: ...
