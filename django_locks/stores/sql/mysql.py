"""MySQL's and MariaDB's statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_locks.stores.base import Claim
from django_locks.stores.sql.base import Statements

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# No guard here: a refused ON DUPLICATE KEY UPDATE changes nothing and flushes nothing, and INSERT … SELECT deadlocks.
# LAST_INSERT_ID(x) makes x the statement's insert id, which is therefore the fence, or 0 for a refusal; the number of
# rows would not do, it depends on the connection's FOUND_ROWS. Assignments happen from left to right, so a column comes
# after those that ask for its old value, and the end comes last. Nothing changes if they happen all at once.
ACQUIRE = """
INSERT INTO {table} ({name}, {owner}, {holder}, {fence}, {acquired_at}, {expires_at}, {released_at}, {outcome})
VALUES (%(name)s, %(owner)s, %(holder)s, LAST_INSERT_ID({now}), {now}, {now} + %(ttl)s, NULL, '')
ON DUPLICATE KEY UPDATE
  {fence} = IF({over}, LAST_INSERT_ID({fence} + 1), IF({ours}, LAST_INSERT_ID({fence}), {fence} + LAST_INSERT_ID(0))),
  {holder} = IF({over} OR {ours}, %(holder)s, {holder}),
  {acquired_at} = IF({over}, {now}, {acquired_at}),
  {released_at} = IF({over}, NULL, {released_at}),
  {outcome} = IF({over}, '', {outcome}),
  {owner} = IF({over}, %(owner)s, {owner}),
  {expires_at} = IF({over} OR {ours}, {now} + %(ttl)s, {expires_at})"""
ACQUIRE = ACQUIRE.replace("{over}", "{expires_at} <= {now}").replace("{ours}", "{owner} = %(owner)s")

# The list of names is for MariaDB, which reads the whole table for a comparison of pairs alone, and locks as it goes.
RENEW = "UPDATE {table} SET {renewed_at} = {now}, {expires_at} = {now} + %(ttl)s WHERE {still_ours}"
STILL_OURS = "SELECT {name} FROM {table} WHERE {still_ours}"


class MySQLStatements(Statements):
    # Not NOW(), which is local time and jumps with daylight saving, nor SYSDATE(), which replicas work out anew.
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

    words = (*Statements.words, "still_ours")
    still_ours = "{name} IN ({{names}}) AND ({name}, {owner}) IN ({{pairs}}) AND {live}"

    def acquire(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float, holder: str) -> int | None:
        parameters: dict[str, Any] = {"name": name, "owner": owner, "holder": holder, "ttl": self._micros(ttl)}
        with connection.cursor() as cursor:
            cursor.execute(self._fill(ACQUIRE), parameters)
            return cursor.lastrowid or None

    def renew(self, connection: BaseDatabaseWrapper, leases: Sequence[Claim]) -> set[str]:
        by_ttl: dict[float, list[Claim]] = {}
        for claim in leases:
            by_ttl.setdefault(claim[2], []).append(claim)
        # A list, as no generator knows its caller, by which Django keeps a secret out of its reports of errors.
        return set().union(*[self._renew_alike(connection, ttl, alike) for ttl, alike in by_ttl.items()])

    def renew_one(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        return bool(self._renew_alike(connection, ttl, [(name, owner, ttl)]))

    def _renew_alike(self, connection: BaseDatabaseWrapper, ttl: float, leases: Sequence[Claim]) -> set[str]:
        parameters: dict[str, Any] = {"ttl": self._micros(ttl)}
        for number, (name, owner, _) in enumerate(leases):
            parameters[f"n{number}"], parameters[f"o{number}"] = name, owner
        if self._write(connection, _listed(self._fill(RENEW), len(leases)), parameters) == len(leases):
            return {name for name, _, _ in leases}
        # Without FOUND_ROWS, a row that got the value it had is not counted either.
        rows = self._read(connection, _listed(self._fill(STILL_OURS), len(leases)), parameters)
        return {name for (name,) in rows}


def _listed(sql: str, count: int) -> str:
    names = ", ".join(f"%(n{number})s" for number in range(count))
    pairs = ", ".join(f"(%(n{number})s, %(o{number})s)" for number in range(count))
    return sql.replace("{names}", names).replace("{pairs}", pairs)
