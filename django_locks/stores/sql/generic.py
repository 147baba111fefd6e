"""The verbs through the ORM, for databases whose own SQL is not here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Left, Now
from django.db.models.sql import Query
from django.utils import timezone

from django_locks.instants import from_micros, to_micros
from django_locks.stores.base import Claim
from django_locks.stores.sql.base import Statements, lease_info
from django_locks.values import LeaseInfo

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_locks.models import Lease


class GenericStatements(Statements):
    """Read the database's clock first, then write under a condition.

    The clock has moved on when the write happens, and that does no harm. A lease that was over at the reading is over
    at the write, or its row has changed and the write finds nothing; a lease counted from the reading ends early, as
    its holder's own count does, which began earlier still.

    Costs two to four statements a verb. The clock is the database's ``Now()`` as Django has it: with USE_TZ off on a
    database whose time zone has daylight saving, leases end an hour early or late on two nights a year.
    """

    resolution = 1000  # the coarsest clock known, SQLite's

    renewed_at_once = 100  # two statements each, all of them within the time that an answer may take

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        pass

    def acquire(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float, holder: str) -> int | None:
        now = self.clock(connection)
        grant = {"owner": owner, "expires_at": from_micros(now + self._micros(ttl))}
        new = {"holder": holder, "acquired_at": from_micros(now), "released_at": None, "outcome": ""}
        rows = _rows(connection).filter(name=name)
        row = rows.first()
        if row is None:
            return self._create(connection, name=name, fence=now, **grant, **new)
        # The row as it was read, or somebody was faster.
        same = rows.filter(owner=row.owner, fence=row.fence, expires_at=row.expires_at)
        if to_micros(row.expires_at) >= now:
            mine = row.owner == owner and same.update(holder=holder, **grant)
            return row.fence if mine else None
        return row.fence + 1 if same.update(fence=row.fence + 1, **grant, **new) else None

    def _create(self, connection: BaseDatabaseWrapper, **row: Any) -> int | None:
        rows = _rows(connection)
        try:
            with transaction.atomic(connection.alias):
                return rows.create(**row).fence
        except IntegrityError:
            if rows.filter(name=row["name"]).exists():  # somebody was faster
                return None
            raise

    def renew(self, connection: BaseDatabaseWrapper, leases: Sequence[Claim]) -> set[str]:
        return {name for name, owner, ttl in leases if self.renew_one(connection, name, owner, ttl)}

    def renew_one(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        now = self.clock(connection)
        held = _live(connection, now).filter(name=name, owner=owner)
        return held.update(renewed_at=from_micros(now), expires_at=from_micros(now + self._micros(ttl))) > 0

    def lock(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        return bool(_rows(connection).select_for_update().filter(name=name, owner=owner))

    def release(self, connection: BaseDatabaseWrapper, name: str, owner: str, hold_for: float, outcome: str) -> bool:
        now = self.clock(connection)
        held = _live(connection, now).filter(name=name, owner=owner)
        end = from_micros(now + self._kept(hold_for))
        return held.update(owner="", released_at=from_micros(now), outcome=outcome, expires_at=end) > 0

    def get(self, connection: BaseDatabaseWrapper, name: str) -> LeaseInfo | None:
        now = self.clock(connection)
        row = _live(connection, now).filter(name=name).first()
        return _info(row, now) if row else None

    def page(self, connection: BaseDatabaseWrapper, prefix: str, after: str, size: int) -> list[LeaseInfo]:
        now = self.clock(connection)
        rows = _live(connection, now).filter(name__gt=after).order_by("name")
        if prefix:
            rows = rows.alias(head=Left("name", len(prefix))).filter(head=prefix)
        return [_info(row, now) for row in rows[:size]]

    def free_names(self, connection: BaseDatabaseWrapper, older_than: float, after: str, size: int) -> list[str]:
        free = self._free(connection, older_than).filter(name__gt=after)
        return list(free.order_by("name").values_list("name", flat=True)[:size])

    def count_free(self, connection: BaseDatabaseWrapper, older_than: float) -> int:
        return self._free(connection, older_than).count()

    def forget(self, connection: BaseDatabaseWrapper, names: Sequence[str], older_than: float) -> int:
        free = self._free(connection, older_than).filter(name__in=names)
        return free._raw_delete(connection.alias)  # delete() would read the rows, then forget the condition

    def _free(self, connection: BaseDatabaseWrapper, older_than: float) -> QuerySet[Lease]:
        end = self.clock(connection) - self._age(older_than)
        return _rows(connection).filter(expires_at__lt=from_micros(end))

    def clock(self, connection: BaseDatabaseWrapper) -> int:
        if not self.now:
            return to_micros(_aware(_now(connection), connection))
        return int(self._read(connection, f"SELECT {self.now}", {})[0][0])


def _rows(connection: BaseDatabaseWrapper) -> QuerySet[Lease]:
    from django_locks.models import Lease

    return Lease._base_manager.using(connection.alias)


def _live(connection: BaseDatabaseWrapper, now: int) -> QuerySet[Lease]:
    return _rows(connection).filter(expires_at__gte=from_micros(now))


def _info(row: Lease, now: int) -> LeaseInfo:
    ends = (to_micros(row.acquired_at), to_micros(row.expires_at))
    return lease_info((row.name, row.owner, row.holder, row.fence, *ends, now))


def _now(connection: BaseDatabaseWrapper) -> datetime:
    expression = Now()
    compiler = Query(None).get_compiler(connection=connection)
    sql, parameters = compiler.compile(expression)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}{connection.features.bare_select_suffix}", parameters)
        value = cursor.fetchone()[0]
    converters = connection.ops.get_db_converters(expression) + expression.get_db_converters(connection)
    for convert in converters:
        value = convert(value, expression, connection)
    moment: datetime = value
    return moment


def _aware(moment: datetime, connection: BaseDatabaseWrapper) -> datetime:
    if timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment, connection.timezone or timezone.get_default_timezone())
