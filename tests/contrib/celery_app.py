"""A Celery app whose tasks are decorated in every way that works."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery, shared_task
from celery.schedules import crontab

from django_locks import LockNotAcquired, locks, with_lock
from django_locks.contrib.celery import ignore, retry

url = os.environ.get("QUEUE_URL")
app = Celery("contrib", broker=url, backend=url, set_as_current=True)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_reject_on_worker_lost=True,
    task_annotations={"tests.contrib.celery_app.annotated": {"@__call__": with_lock("annotated:{self.name}")}},
    beat_schedule={
        "tick": {"task": "tick", "schedule": 1.0, "options": {"queue": "ticks"}},
        "rare": {
            "task": "rare",
            "schedule": crontab(minute="0", hour="0", day_of_month="1"),
            "options": {"queue": "ticks"},
        },
    },
)


def held(name: str) -> bool:
    return locks.get(name) is not None


@app.task
@with_lock("import:{tenant}")
def skipping(tenant: str, *, full: bool = False) -> Any:
    return [tenant, full, held(f"import:{tenant}")]


@shared_task
@with_lock("shared")
def shared() -> bool:
    return held("shared")


@app.task(bind=True)
@with_lock("bound:{number}")
def bound(self: Any, number: int) -> Any:
    return [self.name, self.request.id is not None, held(f"bound:{number}")]


@app.task(bind=True, max_retries=100)
@with_lock("retried", on_busy=retry(countdown=0.1))
def retried(self: Any) -> int:
    retries: int = self.request.retries
    return retries


@app.task
@with_lock("given-up", on_busy=retry(countdown=0.05, max_retries=1))
def given_up() -> None: ...


@app.task(autoretry_for=(LockNotAcquired,), default_retry_delay=0.1, max_retries=100)
@with_lock("auto", on_busy="raise")
def auto_retried() -> bool:
    return held("auto")


@app.task
@with_lock("ignored", on_busy=ignore)
def ignored() -> None: ...


@app.task
def annotated() -> bool:
    return held("annotated:tests.contrib.celery_app.annotated")


@app.task(acks_late=True, max_retries=100)
@with_lock("killed", ttl=1.5, on_busy=retry())
def killed(path: str) -> str:
    mark = Path(path)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


class Classy(app.Task):  # type: ignore[name-defined,misc]
    name = "classy"

    @with_lock("class:{self.name}:{number}")
    def run(self, number: int) -> bool:
        return held(f"class:classy:{number}")


classy = app.register_task(Classy())
