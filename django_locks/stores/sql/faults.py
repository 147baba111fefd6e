"""What to do about a database's errors: which pass, which mean a dead connection, which a missing table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from django.db import Error

from django_locks import chance, clock
from django_locks.transactions import error_codes, is_conflict, sqlite_code

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


T = TypeVar("T")
S = TypeVar("S")

MIGRATE = "its table is missing in the database {!r}, or is not of this version. Run `manage.py migrate`"

MISSING: set[object] = {"42P01", "42703", 1146, 1054}
SQLITE_MISSING = ("no such table", "no such column", "has no column")

MOST_TRIES = 20
LONGEST = 2.0  # seconds; one try may already have waited for the server's own time-out
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05


def persist(connection: BaseDatabaseWrapper, step: Callable[[S, BaseDatabaseWrapper], T], sql: S) -> T:
    """Return what the step returns, over conflicts and dead connections.

    The step may therefore happen more than once. Inside a transaction it happens once: only the transaction's owner can
    repeat that, and a connection closed there would lose the owner's work.
    """
    start, tries = clock.now(), 0
    while True:
        tries += 1
        try:
            return step(sql, connection)
        except Error as error:
            if not _is_free(connection):
                raise
            conflict = is_conflict(error)
            if not conflict and not is_dead(connection):
                raise
            if not conflict:
                connection.close()  # a pool may give another that died with it, so this is not the last try
            if tries == MOST_TRIES or clock.now() - start > LONGEST:
                raise
            if conflict:
                clock.sleep(_pause(tries))


def _pause(tries: int) -> float:
    return min(FIRST_PAUSE * 2.0**tries, LONGEST_PAUSE) * chance.uniform(0.5, 1.5)


def is_table_missing(error: Error) -> bool:
    """Is the table, or one of its columns, not there?"""
    return bool(error_codes(error) & MISSING) or (
        sqlite_code(error) == 1 and any(text in str(error) for text in SQLITE_MISSING)
    )


def is_dead(connection: BaseDatabaseWrapper) -> bool:
    """Was the connection cut while nobody looked, by a restart or by a box on the way? Asks the server.

    One that could not be made at all is not dead: the server is.
    """
    return connection.connection is not None and not connection.is_usable()


def _is_free(connection: BaseDatabaseWrapper) -> bool:
    return not connection.in_atomic_block and (connection.connection is None or connection.autocommit)
