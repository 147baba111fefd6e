"""The record of all holds of those entries of ``LOCKS`` that have ``HISTORY``: written by receivers of signals.

A row is there from the start on, so that a holder that was killed leaves a trace: the next one closes it as expired.
Runs of a database store are in its database, all others in ``default``. They are written by a thread of their own, so
that no holder waits for them and no transaction undoes them; inside a ``TestCase``, on a database in memory and on
SQLite outside of transactions (which has one writer at a time) by the caller itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.dispatch import Signal

from . import clock, signals
from .conf import configured, entries
from .exceptions import InvalidLockStore
from .logs import log_extra
from .recorder import Recorder
from .stores.base import BROKEN, FAILED, RELEASED, here
from .stores.connections import connection_to, is_confined, may_be_confined
from .stores.sql.faults import persist
from .transactions import is_in_transaction
from .values import TEMPLATE_LENGTH

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from .guard import LockGuard
    from .models import Run
    from .values import LeaseInfo

logger = logging.getLogger("django_locks")

LOST, EXPIRED = "lost", "expired"
PRUNE_EVERY = 600.0  # seconds between two looks for what is too old
PRUNE_BATCH = 500
PRUNE_OPEN = 20  # of those whose end nobody recorded, each a question to the store

# An end that is known better replaces one that was guessed: an expiry by the next holder, a loss by the holder itself.
_REPLACES = {RELEASED: ("", EXPIRED), FAILED: ("", EXPIRED), LOST: ("", EXPIRED), BROKEN: ("", EXPIRED, LOST)}


class Start(NamedTuple):
    store: str
    name: str
    fence: int
    holder: str
    started: datetime
    template: str = ""
    waited: float = 0.0


class End(NamedTuple):
    store: str
    name: str
    fence: int
    ended: datetime
    outcome: str
    error: str = ""


class Skip(NamedTuple):
    store: str
    name: str
    hour: datetime
    template: str = ""


Record = Start | End | Skip


def connect() -> None:
    """Receive the signals from now on, as long as an entry of ``LOCKS`` has ``HISTORY``: a receiver costs each lock."""
    setting_changed.connect(_setting_changed, dispatch_uid="django_locks.history")
    _setting_changed(setting="LOCKS")


def _setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting != "LOCKS":
        return
    for signal, receiver in _receivers().items():
        if _is_wanted():
            signal.connect(receiver, dispatch_uid="django_locks.history")
        else:
            signal.disconnect(dispatch_uid="django_locks.history")


def _receivers() -> dict[Signal, Callable[..., None]]:
    return {
        signals.lease_acquired: _acquired,
        signals.lease_released: _released,
        signals.lease_lost: _lost,
        signals.lease_broken: _broken,
        signals.lock_skipped: _skipped,
    }


def _is_wanted() -> bool:
    locks = configured()  # which may be wrong in any way
    found = locks.values() if isinstance(locks, Mapping) else ()
    return any(isinstance(entry, Mapping) and entry.get("HISTORY") is not None for entry in found)


def flush(timeout: float = 5.0) -> bool:
    """Wait until all that has happened in this process is written; return False if that takes longer."""
    return _recorder.flush(timeout)


# Reading


def database_of(alias: str) -> str:
    """Return the alias in DATABASES under which the runs of an entry are."""
    return entries(alias).store.database_alias or "default"


def runs(alias: str, name: str | None = None) -> QuerySet[Run]:
    """Return the runs of an entry of ``LOCKS``, or of one of its locks (without its prefix), the newest first."""
    from .models import Run

    found = Run._default_manager.using(database_of(alias)).filter(store=alias)
    if name is None:
        return found.order_by("-pk")
    return found.filter(name=entries(alias).prefix + name).order_by("-fence")


def outcome_of(run: Run, lease: LeaseInfo | None) -> str:
    """Return how the run ended, given what its lock's store says now: it may have run out with nobody to record it."""
    over = lease is None or lease.fence != run.fence or lease.state != "held"
    return run.outcome or (EXPIRED if over else "")


def settle(alias: str, name: str | None = None) -> int:
    """Close as expired the runs whose lease is over without anybody having recorded it; return how many."""
    store, closed = entries(alias).store, 0
    for run in runs(alias, name).filter(ended=None)[:PRUNE_BATCH]:
        if outcome_of(run, store.get(run.name)) == EXPIRED:
            end = {"ended": clock.wall(), "outcome": EXPIRED}
            closed += runs(alias).filter(pk=run.pk, ended=None).update(**end)
    return closed


def prune(alias: str, older_than: float | None = None) -> int:
    """Forget runs of an entry that ended longer ago than its ``HISTORY``, or so many seconds; return how many."""
    age = entries(alias).history if older_than is None else older_than
    if age is None:
        return 0
    with connection_to(database_of(alias)) as connection:
        forgotten, before = 0, clock.wall() - timedelta(seconds=age)
        while batch := _forget(connection.alias, alias, before):
            forgotten += batch
    return forgotten


class Day(NamedTuple):
    """What went wrong in the last 24 hours."""

    lost: int
    broken: int
    expired: int
    skipped: int


def last_day() -> Day | None:
    """Return what the history of all entries says of the last 24 hours, or ``None`` if none is kept."""
    from django.db.models import Count, Q, Sum

    from .models import Skips

    kept: dict[str, list[str]] = {}
    for alias in entries:
        with suppress(InvalidLockStore):
            if _is_kept(alias):
                kept.setdefault(database_of(alias), []).append(alias)
    since, days = clock.wall() - timedelta(days=1), []
    for database, aliases in kept.items():
        ended = _rows(database).filter(store__in=aliases, ended__gte=since)
        counts = ended.aggregate(
            **{outcome: Count("pk", filter=Q(outcome=outcome)) for outcome in (LOST, BROKEN, EXPIRED)}
        )
        skips = Skips._base_manager.using(database).filter(store__in=aliases, hour__gt=since - timedelta(hours=1))
        days.append(Day(**counts, skipped=skips.aggregate(sum=Sum("count"))["sum"] or 0))
    return Day(*map(sum, zip(*days, strict=True))) if days else None


# What happens


def _acquired(*, alias: str, guard: LockGuard, template: str, waited: float, **kwargs: Any) -> None:
    if _is_kept(alias):
        template = template[:TEMPLATE_LENGTH]
        _record(alias, Start(alias, guard.key, guard.fence, guard.holder, guard.acquired_at, template, waited))


def _released(*, alias: str, guard: LockGuard, outcome: str, error: type | None, **kwargs: Any) -> None:
    if _is_kept(alias):
        _record(alias, End(alias, guard.key, guard.fence, clock.wall(), outcome, _class_path(error)))


def _lost(*, alias: str, guard: LockGuard, **kwargs: Any) -> None:
    if _is_kept(alias):
        _record(alias, End(alias, guard.key, guard.fence, clock.wall(), LOST))


def _broken(*, alias: str, name: str, lease: LeaseInfo, **kwargs: Any) -> None:
    if _is_kept(alias):
        _record(alias, End(alias, entries(alias).prefix + name, lease.fence, clock.wall(), BROKEN))


def _skipped(*, alias: str, name: str, template: str, **kwargs: Any) -> None:
    if _is_kept(alias):
        hour = clock.wall().replace(minute=0, second=0, microsecond=0)
        _record(alias, Skip(alias, entries(alias).prefix + name, hour, template[:TEMPLATE_LENGTH]))


def _is_kept(alias: str) -> bool:
    return entries(alias).history is not None


def _class_path(error: type | None) -> str:
    if error is None:
        return ""
    return error.__qualname__ if error.__module__ == "builtins" else f"{error.__module__}.{error.__qualname__}"[-200:]


# Writing


def _record(alias: str, record: Record) -> None:
    database = database_of(alias)
    if not _is_in_loop():
        if _is_callers_own(database):
            _write_quietly(database, record)
        else:
            _recorder.put((database, record))
    elif may_be_confined(database):  # asked by the event loop, whose thread has no connection of its own
        task = asyncio.get_running_loop().create_task(sync_to_async(_record)(alias, record))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
    else:
        _recorder.put((database, record))


def _is_in_loop() -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop().is_running()
    return False


def _is_callers_own(database: str) -> bool:
    from django.db import connections

    callers = connections[database]
    if is_confined(callers):
        return True
    return callers.vendor == "sqlite" and not here.own and not is_in_transaction(callers)


def _write_quietly(database: str, record: Record) -> None:
    try:
        _write(database, [record])
    except Exception as error:
        logger.warning(
            "The history of the lock %r could not be written: %s",
            record.name,
            error,
            extra=log_extra(record.name, record.store),
        )


def _write_all(records: list[tuple[str, Record]]) -> None:
    for database, group in groupby(sorted(records, key=lambda entry: entry[0]), key=lambda entry: entry[0]):
        _write(database, [record for _, record in group])


def _write(database: str, records: list[Record]) -> None:
    with connection_to(database) as connection:
        persist(connection, lambda _, chosen: _apply(chosen.alias, records), None)
        for alias in {record.store for record in records}:
            _prune_now_and_then(connection.alias, alias)


def _apply(database: str, records: Iterable[Record]) -> None:
    from django.db import transaction

    with transaction.atomic(using=database):
        skips: dict[Skip, int] = {}
        for record in records:
            if isinstance(record, Start):
                _start(database, record)
            elif isinstance(record, End):
                _end(database, record)
            else:
                skips[record] = skips.get(record, 0) + 1
        for skip, count in sorted(skips.items()):
            _skip(database, skip, count)


def _start(database: str, start: Start) -> None:
    of_lock = _rows(database).filter(store=start.store, name=start.name)
    last = of_lock.filter(fence__lt=start.fence).order_by("-fence").values_list("pk", "outcome").first()
    if last is not None and not last[1]:
        of_lock.filter(pk=last[0], outcome="").update(ended=start.started, outcome=EXPIRED)
    of_lock.create(**start._asdict())


def _end(database: str, end: End) -> None:
    run = _rows(database).filter(store=end.store, name=end.name, fence=end.fence, outcome__in=_REPLACES[end.outcome])
    run.update(ended=end.ended, outcome=end.outcome, error=end.error)


def _skip(database: str, skip: Skip, count: int) -> None:
    from django.db import IntegrityError, transaction
    from django.db.models import F

    from .models import Skips

    rows = Skips._base_manager.using(database).filter(store=skip.store, name=skip.name, hour=skip.hour)
    if rows.update(count=F("count") + count):
        return
    try:
        with transaction.atomic(using=database):
            rows.create(**skip._asdict(), count=count)
    except IntegrityError:  # somebody was faster
        rows.update(count=F("count") + count)


# Forgetting

_pruned: dict[str, float] = {}  # by alias: when that was last done


def _prune_now_and_then(database: str, alias: str) -> None:
    now, age = clock.now(), entries(alias).history
    if age is None or now - _pruned.get(alias, now - PRUNE_EVERY) < min(PRUNE_EVERY, age):
        return
    _pruned[alias] = now
    if _forget(database, alias, clock.wall() - timedelta(seconds=age)) >= PRUNE_BATCH:
        del _pruned[alias]  # there is more: go on after the next write


def _forget(database: str, alias: str, before: datetime) -> int:
    """Forget a batch of what ended before that moment, and return of how many runs."""
    from .models import Skips

    Skips._base_manager.using(database).filter(store=alias, hour__lt=before).delete()
    old = _rows(database).filter(store=alias, started__lt=before)
    over = list(old.filter(ended__lt=before).order_by("ended").values_list("pk", flat=True)[:PRUNE_BATCH])
    over += [run.pk for run in old.filter(ended=None)[:PRUNE_OPEN] if _is_over(run)]
    return _rows(database).filter(pk__in=over).delete()[0]


def _is_over(run: Run) -> bool:
    return outcome_of(run, entries(run.store).store.get(run.name)) != ""


def _rows(database: str) -> QuerySet[Run]:
    from .models import Run

    return Run._base_manager.using(database)


_tasks: set[asyncio.Task[None]] = set()
_recorder: Recorder[tuple[str, Record]] = Recorder(_write_all)
