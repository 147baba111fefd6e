"""Celery: a busy lock that retries or ignores the task, and beat replicas of which one sends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from celery import current_task
from celery.beat import PersistentScheduler, Scheduler
from celery.exceptions import Ignore
from celery.schedules import schedule as interval
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections

from django_locks.conf import entries, locks
from django_locks.exceptions import LeaseLost, LockError, LockNotAcquired
from django_locks.guard import LockGuard
from django_locks.logs import log_extra
from django_locks.values import Name, Seconds, clean_duration, describe_duration

logger = logging.getLogger("django_locks")

TICKS_PER_TTL = 3


def ignore(busy: LockNotAcquired) -> NoReturn:
    """Leave the task without a result, as if it had never been sent: ``on_busy=ignore``."""
    raise Ignore(str(busy))


def retry(countdown: float | None = None, max_retries: int | None = None) -> Callable[[LockNotAcquired], NoReturn]:
    """Send the task again: ``on_busy=retry()``.

    ``countdown``: seconds until then; default: when the holder's lease ends unless it is renewed. ``max_retries``: as
    `celery.app.task.Task.retry`; when they are spent, or outside of a worker, `LockNotAcquired` is raised.
    """

    def on_busy(busy: LockNotAcquired) -> NoReturn:
        if not current_task:
            raise busy
        wait = countdown if countdown is not None else busy.lease.remaining if busy.lease else 0
        raise current_task.retry(exc=busy, countdown=wait, max_retries=max_retries)

    return on_busy


class LeaderMixin(Scheduler if TYPE_CHECKING else object):  # type: ignore[misc]
    """Lets one of any number of beat replicas send, and another follow within one TTL when it ends.

    Mix it into any scheduler class. No tick is sent twice: those that come due while nobody leads are not made up for.
    Intervals are counted from 1970, not from the start of beat, so that all replicas mean the same ticks; their clocks
    should agree.
    """

    leader_name: ClassVar[str | None] = None  #: default: ``celery:beat`` and the app's name
    leader_using: ClassVar[str] = "default"  #: the alias in ``LOCKS``
    leader_ttl: ClassVar[Seconds | None] = None  #: default: ``TTL`` of ``LOCKS``

    _guard: LockGuard | None = None
    _looks_again_in = 0.0

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        name = ":".join(filter(None, ("celery:beat", app.main)))
        self._lock = self.leader_name or name
        ttl = self.leader_ttl or entries(self.leader_using).ttl
        self._ttl = clean_duration(ttl, "leader_ttl")
        longest = self._ttl / TICKS_PER_TTL
        wanted = kwargs.get("max_interval") or app.conf.beat_max_loop_interval
        if wanted and wanted > longest:
            raise ImproperlyConfigured(
                f"The lock {self._lock!r} (store {self.leader_using!r}) has a TTL of {describe_duration(self._ttl)}, "
                f"and beat ticks every {describe_duration(wanted)}: a TTL must last for {TICKS_PER_TTL} ticks. Give "
                f"it a longer TTL, or leave beat_max_loop_interval and --max-interval alone."
            )
        super().__init__(app, *args, **{**kwargs, "max_interval": wanted or min(longest, self._usual_interval())})

    def _usual_interval(self) -> float:
        return float(Scheduler.max_interval)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due if this replica leads; else look whether it may. Returns seconds until the next tick."""
        if self._leads():
            return float(super().tick(*args, **kwargs))
        self.follow()
        return float(min(self._looks_again_in, self.max_interval))

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        if self._guard is not None and self._guard.lost:
            logger.error(
                "Not sent: %s is due, but beat's lock %r is lost.",
                entry.name,
                self._lock,
                extra=self._guard.log_extra(),
            )
            return
        super().apply_entry(entry, producer=producer)

    def reserve(self, entry: Any) -> Any:
        """Count the entry as sent, in the tick that its interval counts from 1970."""
        entry = super().reserve(entry)
        if type(entry.schedule) is interval:
            entry.last_run_at = _last_multiple(entry.last_run_at, entry.schedule.run_every.total_seconds())
        return entry

    def follow(self) -> None:
        """Count as sent what is due, since the leader sends it."""
        for entry in list(self.schedule.values()):
            try:
                if self.is_due(entry)[0]:
                    self.reserve(entry)
            except Exception:
                logger.exception("Beat cannot tell when %s is due.", entry.name)

    def close(self) -> None:
        super().close()
        guard, self._guard = self._guard, None
        if guard is not None:
            with suppress(LeaseLost), guard:
                pass  # leaving the block gives it back, or logs why not

    def _leads(self) -> bool:
        if self._guard is not None and not self._guard.lost:
            return True
        self._guard = self._elected()
        if self._guard is None:
            return False
        self.follow()
        self._heap = None  # made anew by the tick, from what is due from now on
        logger.info("Beat leads %r (fence %d).", self._lock, self._guard.fence, extra=self._guard.log_extra())
        return True

    def _elected(self) -> LockGuard | None:
        self._looks_again_in = self._ttl / TICKS_PER_TTL
        close_old_connections()
        try:
            return locks.using(self.leader_using).acquire(Name(self._lock, self._lock), ttl=self._ttl, renew=True)
        except LockNotAcquired as busy:
            if busy.lease is not None:
                self._looks_again_in = min(self._looks_again_in, busy.lease.remaining + 0.01)
        except LockError as error:
            extra = log_extra(self._lock, self.leader_using, template=self._lock)
            logger.warning("Beat cannot ask for its lock %r, and sends nothing: %s", self._lock, error, extra=extra)
        return None


class LeaderScheduler(LeaderMixin, PersistentScheduler):  # type: ignore[misc]
    """Celery's own scheduler, with one leader: ``celery beat -S django_locks.contrib.celery:LeaderScheduler``."""


def _last_multiple(moment: datetime, seconds: float) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, moment.tzinfo)
