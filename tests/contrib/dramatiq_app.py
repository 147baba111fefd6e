"""dramatiq actors on Valkey."""

from __future__ import annotations

import os

import django
import dramatiq
from django.apps import apps
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from django_locks import LockNotAcquired, locks, with_lock
from django_locks.contrib.dramatiq import retry

if not apps.ready:
    django.setup()
url = os.environ["QUEUE_URL"]
broker = RedisBroker(url=url)
results = RedisBackend(url=url)
broker.add_middleware(Results(backend=results))
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
@with_lock("dramatiq:{number}")
def skipping(number: int) -> bool:
    return locks.get(f"dramatiq:{number}") is not None


@dramatiq.actor(store_results=True)
@with_lock("dramatiq:async")
async def asynchronous() -> bool:
    return await locks.aget("dramatiq:async") is not None


@dramatiq.actor(store_results=True, max_retries=200)
@with_lock("dramatiq:retried", on_busy=retry(0.1))
def retried() -> str:
    return "ran"


@dramatiq.actor(store_results=True, max_retries=200, min_backoff=100, max_backoff=100)
@with_lock("dramatiq:raised", on_busy="raise")
def raised() -> str:
    return "ran"


@dramatiq.actor(store_results=True, throws=(LockNotAcquired,))
@with_lock("dramatiq:thrown", on_busy="raise")
def thrown() -> None: ...
