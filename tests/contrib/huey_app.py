"""Huey tasks on Valkey."""

from __future__ import annotations

import os
from typing import Any

import django
from django.apps import apps
from huey import PriorityRedisHuey, crontab

from django_locks import locks, with_lock
from django_locks.contrib.huey import cancel, retry

if not apps.ready:
    django.setup()
huey = PriorityRedisHuey("contrib", url=os.environ["QUEUE_URL"], utc=True)


@huey.task()
@with_lock("huey:{number}")
def skipping(number: int) -> bool:
    return locks.get(f"huey:{number}") is not None


@huey.task(context=True, name="with-context")
@with_lock("huey:context")
def with_context(task: Any) -> bool:
    return task.id is not None


@huey.task(retries=2)
@with_lock("huey:cancelled", on_busy=cancel)
def cancelled() -> None: ...


@huey.task()
@with_lock("huey:retried", on_busy=retry(0.2))
def retried() -> str:
    return "ran"


@huey.task(retries=200, retry_delay=0.1)
@with_lock("huey:raised", on_busy="raise")
def raised() -> str:
    return "ran"


@huey.periodic_task(crontab())
@with_lock("huey:minutely", at_least=50)
def minutely() -> bool:
    return locks.get("huey:minutely") is not None
