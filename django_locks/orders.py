"""In which order ``with_lock`` goes with the decorators of task queues, none of which is imported here."""

from __future__ import annotations

import dataclasses
from typing import Any

# By the package of its class, what has taken the function in already, and would go on to call it without the lock.
_TOO_LATE = {
    "celery": ("a Celery task", "@app.task or @shared_task"),
    "dramatiq": ("a dramatiq actor", "@dramatiq.actor"),
    "huey": ("a huey task", "@huey.task(), @db_task() or @periodic_task(…)"),
    "procrastinate": ("a procrastinate task", "@app.task"),
}


def refuse_wrong_order(target: Any) -> None:
    """Raise TypeError, which says the right order, if the lock would come too late."""
    for base in type(target).__mro__:  # asks a lazy task for nothing, which might finalize its app
        what, theirs = _TOO_LATE.get(base.__module__.partition(".")[0], ("", ""))
        if what:
            raise TypeError(
                f"with_lock got {what}, which would go on running its function without the lock. The other way round: "
                f"put @with_lock(…) below {theirs}, next to the function."
            )


def is_task(target: Any) -> bool:
    """Is it a Task of ``django.tasks`` or its backport: a value, of which there may be another with the lock?"""
    return dataclasses.is_dataclass(target) and all(hasattr(target, name) for name in ("func", "enqueue", "using"))
