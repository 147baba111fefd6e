"""PostgreSQL's statements."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from django.db import ProgrammingError, transaction

from django_locks.stores.base import Claim
from django_locks.stores.sql.base import Statements
from django_locks.transactions import error_codes

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# The casts are for server-side binding, which cannot tell the types of a SELECT's parameters. WHERE NOT EXISTS makes a
# refusal read only: ON CONFLICT DO UPDATE locks the row, and writes WAL for it, even where its own WHERE is false, so
# each poll of a held lease would flush the log and stand in its holder's way. The end is worked out again instead of
# taken from "excluded", which was made before the wait for the row.
ACQUIRE = """
INSERT INTO {table} AS l
  ({name}, {owner}, {holder}, {fence}, {acquired_at}, {expires_at}, {released_at}, {outcome})
SELECT %(name)s::varchar, %(owner)s::varchar, %(holder)s::varchar, {now}, {now}, {now} + %(ttl)s, NULL, ''
WHERE NOT EXISTS (
  SELECT 1 FROM {table} AS h
  WHERE h.{name} = %(name)s::varchar AND h.{owner} <> %(owner)s::varchar AND h.{expires_at} > {now})
ON CONFLICT ({name}) DO UPDATE SET
  {owner} = excluded.{owner}, {holder} = excluded.{holder}, {released_at} = NULL, {outcome} = '',
  {fence} = CASE WHEN {same} THEN l.{fence} ELSE l.{fence} + 1 END,
  {acquired_at} = CASE WHEN {same} THEN l.{acquired_at} ELSE {now} END,
  {expires_at} = {now} + %(ttl)s
WHERE l.{owner} = excluded.{owner} OR l.{expires_at} <= {now}
RETURNING l.{fence}""".replace("{same}", "l.{owner} = excluded.{owner} AND l.{expires_at} > {now}")

# The same as a function, made by a migration: it keeps its plans, and planning is most of what a refusal costs.
CALL = "SELECT django_locks_lease_acquire(%(name)s::varchar, %(owner)s::varchar, %(holder)s::varchar, %(ttl)s::bigint)"
NO_FUNCTION: set[object] = {"42883", "42501"}  # undefined_function, insufficient_privilege

RENEW = """
UPDATE {table} AS l SET {expires_at} = {now} + v.ttl
FROM unnest(%(names)s::varchar[], %(owners)s::varchar[], %(ttls)s::bigint[]) AS v (name, owner, ttl)
WHERE l.{name} = v.name AND l.{owner} = v.owner AND l.{expires_at} > {now}
RETURNING l.{name}"""


class PostgreSQLStatements(Statements):
    # now() would be the start of the transaction, and a wait for the row would not count.
    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

    #: Is there the function? None: not yet asked.
    _has_function: bool | None = None

    def acquire(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float, holder: str) -> int | None:
        parameters = {"name": name, "owner": owner, "holder": holder, "ttl": self._micros(ttl)}
        if self._has_function is not False:
            try:
                return self._acquire_by_function(connection, parameters)
            except ProgrammingError as error:
                if not error_codes(error) & NO_FUNCTION:
                    raise
                self._has_function = False
        rows = self._read(connection, self._fill(ACQUIRE), parameters)
        return int(rows[0][0]) if rows else None

    def _acquire_by_function(self, connection: BaseDatabaseWrapper, parameters: dict[str, Any]) -> int | None:
        unsure = self._has_function is None and connection.in_atomic_block
        with transaction.atomic(using=connection.alias) if unsure else nullcontext():
            fence: int | None = self._read(connection, CALL, parameters)[0][0]
        self._has_function = True
        return fence

    def renew(self, connection: BaseDatabaseWrapper, leases: Sequence[Claim]) -> set[str]:
        names, owners, ttls = zip(*leases, strict=True)
        parameters = {"names": list(names), "owners": list(owners), "ttls": [self._micros(ttl) for ttl in ttls]}
        return {name for (name,) in self._read(connection, self._fill(RENEW), parameters)}
