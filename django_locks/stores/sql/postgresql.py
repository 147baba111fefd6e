"""PostgreSQL's statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_locks.stores.base import Claim
from django_locks.stores.sql.base import Statements

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

RENEW = """
UPDATE {table} AS l SET {renewed_at} = {now}, {expires_at} = {now} + v.ttl
FROM unnest(%(names)s::varchar[], %(owners)s::varchar[], %(ttls)s::bigint[]) AS v (name, owner, ttl)
WHERE l.{name} = v.name AND l.{owner} = v.owner AND l.{expires_at} > {now}
RETURNING l.{name}"""


class PostgreSQLStatements(Statements):
    # now() would be the start of the transaction, and a wait for the row would not count.
    now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

    def acquire(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float, holder: str) -> int | None:
        parameters = {"name": name, "owner": owner, "holder": holder, "ttl": self._micros(ttl)}
        rows = self._read(connection, self._fill(ACQUIRE), parameters)
        return int(rows[0][0]) if rows else None

    def renew(self, connection: BaseDatabaseWrapper, leases: Sequence[Claim]) -> set[str]:
        names, owners, ttls = zip(*leases, strict=True)
        parameters = {"names": list(names), "owners": list(owners), "ttls": [self._micros(ttl) for ttl in ttls]}
        return {name for (name,) in self._read(connection, self._fill(RENEW), parameters)}
