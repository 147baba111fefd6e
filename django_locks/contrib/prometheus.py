"""Prometheus: a collector that reads the stores and the history, so that short cron processes count, too.

``REGISTRY.register(LocksCollector())``, once in a process that is scraped. Every replica tells the same: take the
``max`` of them, not the ``sum``. Without ``HISTORY`` in an entry of ``LOCKS`` there is only what is held now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from django_locks import clock, history
from django_locks.conf import entries
from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.history import LOST
from django_locks.logs import log_extra
from django_locks.stores.base import RELEASED

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_locks.models import Run
    from django_locks.options import LockSettings

logger = logging.getLogger("django_locks")

MICROSECONDS = 1_000_000


class LocksCollector(Collector):
    """Gauges by store and template.

    What has ended is told of the last ``window`` alone, not counted from the beginning: the history is pruned, and an
    end that was guessed gives way to one that is known, which a counter must not do. No ``rate()`` over these.
    """

    def __init__(self, window: timedelta = timedelta(hours=1)) -> None:
        self.window = window

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing: else the registry would ask the stores as soon as it knows the collector."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Ask all stores, and the database for what has been. A store that cannot be asked is told to be down."""
        gauges = _Gauges()
        with _connections_as_before():
            for alias in entries:
                gauges.store_up(alias, self._read(gauges, alias))
        return gauges.families()

    def _read(self, gauges: _Gauges, alias: str) -> bool:
        try:
            settings = entries(alias)
            held = _held(alias, settings)
        except (InvalidLockStore, StoreUnavailable) as error:
            logger.warning("No metrics of the lock store %r: %s", alias, error, extra=log_extra("", alias))
            return False
        templates: dict[tuple[str, int], str] = {}
        if settings.history is not None:
            try:
                templates = dict(self._read_history(gauges, alias))
            except DatabaseError as error:
                logger.warning("No metrics of the history of %r: %s", alias, error, extra=log_extra("", alias))
        for key, seconds in held.items():
            gauges.add_held(alias, templates.get(key, ""), seconds)
        return True

    def _read_history(self, gauges: _Gauges, alias: str) -> Iterator[tuple[tuple[str, int], str]]:
        """Read what has been, and yield the templates of what is held."""
        since = clock.wall() - self.window
        rows = history.runs(alias).order_by()
        for template in _templates(rows):
            gauges.know(alias, template)
            gauges.last_success(alias, template, rows)
        gauges.holds(alias, rows.filter(ended__gte=since))
        gauges.waits(alias, rows.filter(started__gte=since))
        gauges.skips(alias, since)
        for name, fence, template in rows.filter(ended=None).values_list("name", "fence", "template"):
            yield (name, fence), template


class _Gauges:
    """The values of one scrape."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in FAMILIES}

    def families(self) -> Iterator[GaugeMetricFamily]:
        for name, (help_text, labels) in FAMILIES.items():
            family = GaugeMetricFamily(f"django_locks_{name}", help_text, labels=labels)
            for values, number in self._samples[name].items():
                family.add_metric(values, number)
            yield family

    def store_up(self, alias: str, up: bool) -> None:
        self._samples["store_up"][alias,] = float(up)

    def know(self, alias: str, template: str) -> None:
        """Tell of a template although nothing has happened to it."""
        for name in ("held", "lost", "skips"):
            self._samples[name].setdefault((alias, template), 0.0)

    def add_held(self, alias: str, template: str, seconds: float) -> None:
        held, oldest = self._samples["held"], self._samples["held_seconds_max"]
        labels = alias, template
        held[labels] = held.get(labels, 0.0) + 1
        oldest[labels] = max(oldest.get(labels, 0.0), seconds)

    def last_success(self, alias: str, template: str, rows: QuerySet[Run]) -> None:
        ends = rows.filter(template=template, outcome=RELEASED, ended__isnull=False).order_by("-ended")
        last = ends.values_list("ended", flat=True).first()
        if last is not None:
            self._samples["last_success_timestamp_seconds"][alias, template] = last.timestamp()

    def holds(self, alias: str, ended: QuerySet[Run]) -> None:
        from django.db.models import Avg, BigIntegerField, Count, ExpressionWrapper, F, Max

        took = ExpressionWrapper(F("ended") - F("started"), output_field=BigIntegerField())
        groups = ended.values("template", "outcome").annotate(count=Count("pk"), mean=Avg(took), longest=Max(took))
        for group in groups:
            labels = alias, group["template"], group["outcome"]
            self._samples["holds"][labels] = group["count"]
            self._samples["hold_seconds_avg"][labels] = float(group["mean"]) / MICROSECONDS
            self._samples["hold_seconds_max"][labels] = group["longest"] / MICROSECONDS
            if group["outcome"] == LOST:
                self._samples["lost"][labels[:2]] = group["count"]

    def waits(self, alias: str, started: QuerySet[Run]) -> None:
        from django.db.models import Avg, Max

        for group in started.values("template").annotate(mean=Avg("waited"), longest=Max("waited")):
            labels = alias, group["template"]
            self._samples["wait_seconds_avg"][labels] = group["mean"]
            self._samples["wait_seconds_max"][labels] = group["longest"]

    def skips(self, alias: str, since: Any) -> None:
        from django.db.models import Sum

        from django_locks.models import Skips

        rows = Skips._base_manager.using(history.database_of(alias)).filter(
            store=alias, hour__gt=since - timedelta(hours=1)
        )
        for group in rows.values("template").annotate(sum=Sum("count")):
            self._samples["skips"][alias, group["template"]] = group["sum"]


BY_TEMPLATE, BY_OUTCOME = ["store", "template"], ["store", "template", "outcome"]
FAMILIES = {
    "store_up": ("1 if the lock store could be asked.", ["store"]),
    "held": ("Locks that are held now.", BY_TEMPLATE),
    "held_seconds_max": ("For how long the oldest of them has been held.", BY_TEMPLATE),
    "last_success_timestamp_seconds": ("When a holder last gave the lock back without an exception.", BY_TEMPLATE),
    "lost": ("Leases whose holder was told that it lost them, in the window.", BY_TEMPLATE),
    "holds": ("Holds that ended in the window.", BY_OUTCOME),
    "hold_seconds_avg": ("Mean duration of the holds that ended in the window.", BY_OUTCOME),
    "hold_seconds_max": ("Longest of the holds that ended in the window.", BY_OUTCOME),
    "wait_seconds_avg": ("Mean time from the call to the grant, of the grants in the window.", BY_TEMPLATE),
    "wait_seconds_max": ("Longest time from the call to the grant, of the grants in the window.", BY_TEMPLATE),
    "skips": ("Calls not run since the lock was busy, in the hours that the window touches.", BY_TEMPLATE),
}


def _held(alias: str, settings: LockSettings) -> dict[tuple[str, int], float]:
    """Return for how many seconds each lease has been held by now."""
    return {
        (lease.name, lease.fence): (lease.expires_at - lease.acquired_at).total_seconds() - lease.remaining
        for lease in settings.store.leases(settings.prefix)
        if lease.state == "held"
    }


def _templates(rows: QuerySet[Run]) -> Iterator[str]:
    """Yield the templates by the index, each a question of its own: a GROUP BY would read all rows."""
    found = rows.order_by("template").values_list("template", flat=True)
    template = found.first()
    while template is not None:
        yield template
        template = found.filter(template__gt=template).first()


@contextmanager
def _connections_as_before() -> Iterator[None]:
    """Close what was opened for this scrape: servers of metrics use a thread a scrape."""
    before = {connection.alias for connection in connections.all(initialized_only=True) if connection.connection}
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            if connection.alias not in before and not connection.in_atomic_block:
                connection.close()
