"""SQLite's statements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_locks.stores.base import Claim
from django_locks.stores.sql.base import Statements
from django_locks.stores.sql.generic import GenericStatements
from django_locks.values import Secret

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

ACQUIRE = """
INSERT INTO {table} AS l
  ({name}, {owner}, {holder}, {fence}, {acquired_at}, {expires_at}, {released_at}, {outcome})
VALUES (%(name)s, %(owner)s, %(holder)s, {now}, {now}, {now} + %(ttl)s, NULL, '')
ON CONFLICT ({name}) DO UPDATE SET
  {owner} = excluded.{owner}, {holder} = excluded.{holder}, {released_at} = NULL, {outcome} = '',
  {fence} = CASE WHEN {same} THEN l.{fence} ELSE l.{fence} + 1 END,
  {acquired_at} = CASE WHEN {same} THEN l.{acquired_at} ELSE excluded.{acquired_at} END,
  {expires_at} = excluded.{expires_at}
WHERE l.{owner} = excluded.{owner} OR l.{expires_at} < {now}
RETURNING {fence}""".replace("{same}", "l.{owner} = excluded.{owner} AND l.{expires_at} >= {now}")

RENEW = """
WITH v (lease_name, lease_owner, ttl) AS (
  SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
  FROM json_each(%(claims)s))
UPDATE {table} SET {renewed_at} = {now}, {expires_at} = {now} + v.ttl FROM v
WHERE {name} = v.lease_name AND {owner} = v.lease_owner AND {live}
RETURNING {name}"""

LOCK = "UPDATE {table} SET {expires_at} = {now} + %(ttl)s WHERE {name} = %(name)s AND {owner} = %(owner)s"


class SQLiteStatements(Statements):
    """For SQLite 3.35 and newer, which has RETURNING."""

    # Whole milliseconds, for that is where SQLite cuts its "now"; in integers, for julianday() is off by one in half of
    # all milliseconds.
    now = (
        "(CAST(strftime('%%s', 'now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%%f', 'now'), 4) AS INTEGER) * 1000)"
    )
    resolution = 1000
    # Strict the other way round: a cut clock is late by up to a millisecond, and the holder's is not.
    live = "{expires_at} >= {now}"

    def acquire(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float, holder: str) -> int | None:
        parameters = {"name": name, "owner": owner, "holder": holder, "ttl": self._micros(ttl)}
        rows = self._read(connection, self._fill(ACQUIRE), parameters)
        return int(rows[0][0]) if rows else None

    def renew(self, connection: BaseDatabaseWrapper, leases: Sequence[Claim]) -> set[str]:
        claims = [(name, owner, self._micros(ttl)) for name, owner, ttl in leases]
        text = Secret(json.dumps(claims, ensure_ascii=False))
        rows = self._read(connection, self._fill(RENEW), {"claims": text})
        return {name for (name,) in rows}

    def lock(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        # The first write of a transaction locks the whole file, and nobody takes over until it ends, however late.
        parameters = {"name": name, "owner": owner, "ttl": self._micros(ttl)}
        return self._write(connection, self._fill(LOCK), parameters) > 0


class OldSQLiteStatements(GenericStatements):
    now = SQLiteStatements.now

    def lock(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        return SQLiteStatements(connection).lock(connection, name, owner, ttl)
