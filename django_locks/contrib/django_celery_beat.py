"""django-celery-beat: replicas of beat, of which one sends what is in the database."""

from __future__ import annotations

from typing import Any

from django_celery_beat.schedulers import DEFAULT_MAX_INTERVAL, DatabaseScheduler

from django_locks.contrib.celery import LeaderMixin


class LeaderDatabaseScheduler(LeaderMixin, DatabaseScheduler):  # type: ignore[misc]
    """Its scheduler, with one leader: ``-S django_locks.contrib.django_celery_beat:LeaderDatabaseScheduler``.

    The leader writes down each run at once, and who follows it reads that: what came due while nobody led is sent late.
    """

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(app, *args, **{**kwargs, "sync_every_tasks": 1})

    def _usual_interval(self) -> float:
        return float(DEFAULT_MAX_INTERVAL)

    def reserve(self, entry: Any) -> Any:
        return DatabaseScheduler.reserve(self, entry)  # its intervals count from the last run, which all replicas know

    def follow(self) -> None:
        """Read the runs of the leader, instead of guessing them."""
        self._dirty.clear()
        self._initial_read = True
        # An earlier change would let the heap be made twice, the second time from what it was before the first run.
        self._last_timestamp = None
        self._heap_invalidated = False
