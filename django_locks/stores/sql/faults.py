"""What to do about a database's errors: which pass, which mean a dead connection, which a missing table."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import Error

from django_locks import clock

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")

MIGRATE = "its table is missing in the database {!r}, or is not of this version. Run `manage.py migrate`"

#: Somebody else's statement had right of way. PostgreSQL and the standard: SQLSTATE; MySQL: error numbers.
CONFLICTS: set[object] = {"40001", "40P01", 1205, 1213}
SQLITE_CONFLICTS = {5, 6}  # SQLITE_BUSY, SQLITE_LOCKED: https://www.sqlite.org/rescode.html
MISSING: set[object] = {"42P01", "42703", 1146, 1054}
SQLITE_MISSING = ("no such table", "no such column", "has no column")

MOST_TRIES = 20
LONGEST = 2.0  # seconds; one try may already have waited for the server's own time-out
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05


def persist(connection: BaseDatabaseWrapper, step: Callable[[], T]) -> T:
    """Return what the step returns, over conflicts and one dead connection.

    The step may therefore happen twice. Inside a transaction it happens once: only its owner can repeat that, and a
    connection closed there would lose the owner's work.
    """
    start, pause, had_died = clock.now(), FIRST_PAUSE, False
    for left in reversed(range(MOST_TRIES)):
        was_open = connection.connection is not None
        try:
            return step()
        except Error as error:
            if not left or not _is_free(connection) or clock.now() - start > LONGEST:
                raise
            if is_conflict(error):
                clock.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
                pause = min(pause * 2, LONGEST_PAUSE)
            elif was_open and not had_died and is_dead(connection):
                had_died = True
                connection.close()
            else:
                raise
    raise AssertionError("unreachable")


def is_conflict(error: Error) -> bool:
    """Did the statement change nothing because of another one, so that it may be sent again?"""
    return bool(_codes(error) & CONFLICTS) or _sqlite_code(error) in SQLITE_CONFLICTS


def is_table_missing(error: Error) -> bool:
    """Is the table, or one of its columns, not there?"""
    return bool(_codes(error) & MISSING) or (
        _sqlite_code(error) == 1 and any(text in str(error) for text in SQLITE_MISSING)
    )


def is_dead(connection: BaseDatabaseWrapper) -> bool:
    """Ask the server: an idle connection may have been cut long ago, by a restart or by a box on the way."""
    return connection.connection is None or not connection.is_usable()


def _is_free(connection: BaseDatabaseWrapper) -> bool:
    return not connection.in_atomic_block and (connection.connection is None or connection.autocommit)


def _codes(error: Error) -> set[Any]:
    cause: Any = error.__cause__ or error
    # psycopg 3, psycopg2, and the MySQL drivers, which give the number as the first argument.
    return {getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None), *cause.args[:1]}


def _sqlite_code(error: Error) -> int | None:
    code = getattr(error.__cause__, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the rest of an extended code only says why
