"""The statements that every database understands, and what the others have in common.

A statement is a template: names in braces become quoted names of the table and its columns, or an expression of the
vendor's. All instants are microseconds since the epoch by the database server's clock, read by the very statement that
compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django_locks.instants import from_micros, on_calendar
from django_locks.stores.base import Claim
from django_locks.values import LeaseInfo, Secret

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

RELEASE = """
UPDATE {table} SET {owner} = '', {released_at} = {now}, {outcome} = %(outcome)s, {expires_at} = {now} + %(hold_for)s
WHERE {name} = %(name)s AND {owner} = %(owner)s AND {live}"""

RENEW_ONE = """
UPDATE {table} SET {renewed_at} = {now}, {expires_at} = {now} + %(ttl)s
WHERE {name} = %(name)s AND {owner} = %(owner)s AND {live}"""

LOCK = "SELECT 1 FROM {table} WHERE {name} = %(name)s AND {owner} = %(owner)s FOR UPDATE"

GET = "SELECT {lease} FROM {table} WHERE {name} = %(name)s AND {live}"

# A prefix is compared as text, for LIKE would need its wildcards escaped, and ignores case on SQLite.
PAGE = """
SELECT {lease} FROM {table}
WHERE {name} >= %(start)s AND {name} <> %(after)s AND substr({name}, 1, %(length)s) = %(prefix)s AND {live}
ORDER BY {name} LIMIT %(size)s"""

FREE = "SELECT {name} FROM {table} WHERE {name} > %(after)s AND {free} ORDER BY {name} LIMIT %(size)s"
COUNT_FREE = "SELECT COUNT(*) FROM {table} WHERE {free}"
FORGET = "DELETE FROM {table} WHERE {name} IN ({{names}}) AND {free}"


class Statements:
    """The store's verbs as statements for one vendor; one statement a verb. Durations are in seconds."""

    #: The server's clock.
    now = ""
    #: Is the lease live? The end itself belongs to nobody: a successor may come at that very microsecond.
    live = "{expires_at} > {now}"
    #: Has the row been free for so long?
    free = "{expires_at} < {now} - %(older_than)s"
    #: What `lease_info` reads.
    lease = "{name}, {owner}, {holder}, {fence}, {acquired_at}, {expires_at}, {now}"
    #: Which of these attributes a statement may name in braces, beside the table and its columns.
    words: tuple[str, ...] = ("live", "free", "lease")
    #: The most leases that `renew` is given at once.
    renewed_at_once = 1000
    #: The microseconds between two readings of the clock that differ.
    resolution = 1

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        from django_locks.models import Lease

        quote = connection.ops.quote_name
        words = {field.name: quote(field.attname) for field in Lease._meta.concrete_fields}
        words |= {"table": quote(Lease._meta.db_table), "now": self.now}
        for word in self.words:
            words[word] = getattr(self, word).format_map(words)
        self._words = words
        self._filled: dict[str, str] = {}

    def acquire(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float, holder: str) -> int | None:
        raise NotImplementedError

    def renew(self, connection: BaseDatabaseWrapper, leases: Sequence[Claim]) -> set[str]:
        raise NotImplementedError

    def renew_one(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        parameters = {"name": name, "owner": owner, "ttl": self._micros(ttl)}
        return self._write(connection, self._fill(RENEW_ONE), parameters) > 0

    def lock(self, connection: BaseDatabaseWrapper, name: str, owner: str, ttl: float) -> bool:
        """Lock the row until the end of the open transaction; return whether it is the owner's. Live or not."""
        return bool(self._read(connection, self._fill(LOCK), {"name": name, "owner": owner}))

    def release(self, connection: BaseDatabaseWrapper, name: str, owner: str, hold_for: float, outcome: str) -> bool:
        parameters = {"name": name, "owner": owner, "hold_for": self._kept(hold_for), "outcome": outcome}
        return self._write(connection, self._fill(RELEASE), parameters) > 0

    def get(self, connection: BaseDatabaseWrapper, name: str) -> LeaseInfo | None:
        rows = self._read(connection, self._fill(GET), {"name": name})
        return lease_info(rows[0]) if rows else None

    def read_all_columns(self, connection: BaseDatabaseWrapper) -> bool:
        """Fail as the database does if the table lacks a column, or is not there; else return True."""
        from django_locks.models import Lease

        return Lease._base_manager.using(connection.alias).filter(name="").first() is None

    def page(self, connection: BaseDatabaseWrapper, prefix: str, after: str, size: int) -> list[LeaseInfo]:
        """Return the first live leases of the prefix whose name comes after ``after``."""
        parameters = {
            "start": max(prefix, after),
            "after": after,
            "prefix": prefix,
            "length": len(prefix),
            "size": size,
        }
        return [lease_info(row) for row in self._read(connection, self._fill(PAGE), parameters)]

    def clock(self, connection: BaseDatabaseWrapper) -> int:
        """Return the server's time in microseconds since the epoch."""
        return int(self._read(connection, f"SELECT {self.now}", {})[0][0])

    def free_names(self, connection: BaseDatabaseWrapper, older_than: float, after: str, size: int) -> list[str]:
        """Return the first names that have been free for so long and come after ``after``."""
        parameters = {"older_than": self._age(older_than), "after": after, "size": size}
        return [name for (name,) in self._read(connection, self._fill(FREE), parameters)]

    def count_free(self, connection: BaseDatabaseWrapper, older_than: float) -> int:
        """Return how many names have been free for so long."""
        return int(self._read(connection, self._fill(COUNT_FREE), {"older_than": self._age(older_than)})[0][0])

    def forget(self, connection: BaseDatabaseWrapper, names: Sequence[str], older_than: float) -> int:
        """Delete those of the names that are still as free; return how many were."""
        parameters = {f"n{number}": name for number, name in enumerate(names)}
        sql = self._fill(FORGET).replace("{names}", ", ".join(f"%({key})s" for key in parameters))
        return self._write(connection, sql, {**parameters, "older_than": self._age(older_than)})

    def _micros(self, seconds: float) -> int:
        # Upwards to whole ticks: a lease that ends between two readings of a coarse clock would end early by a part
        # of a tick, while its holder still believes in it.
        return math.ceil(seconds * 1_000_000 / self.resolution) * self.resolution

    def _kept(self, hold_for: float) -> int:
        # A name given back ended a microsecond ago, which is over by every vendor's reckoning.
        return self._micros(hold_for) or -1

    def _age(self, older_than: float) -> int:
        # At least one tick: a name forgotten and taken again within one would start again from an earlier fence.
        return max(self._micros(older_than), self.resolution)

    def _fill(self, template: str) -> str:
        filled = self._filled.get(template)
        if filled is None:
            filled = self._filled[template] = template.format_map(self._words)
        return filled

    def _read(self, connection: BaseDatabaseWrapper, sql: str, parameters: dict[str, Any]) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            # All of them: SQLite commits a writing statement only after its last row.
            return list(cursor.fetchall())

    def _write(self, connection: BaseDatabaseWrapper, sql: str, parameters: dict[str, Any]) -> int:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return int(cursor.rowcount)


def lease_info(row: Sequence[Any]) -> LeaseInfo:
    name, owner, holder, fence, acquired_at, expires_at, now = row
    return LeaseInfo(
        name=name,
        owner=Secret(owner),
        holder=holder,
        fence=fence,
        acquired_at=from_micros(acquired_at),
        expires_at=from_micros(expires_at),
        remaining=(on_calendar(expires_at) - now) / 1_000_000,
    )
