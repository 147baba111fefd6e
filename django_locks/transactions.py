"""The database transactions of the calling thread: which are open, and when they end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

logger = logging.getLogger("django_locks")

#: Another transaction had right of way. PostgreSQL and the standard: SQLSTATE; MySQL: error numbers.
CONFLICTS: set[object] = {"40001", "40P01", 1020, 1205, 1213}
SQLITE_CONFLICTS = {5, 6}  # SQLITE_BUSY, SQLITE_LOCKED: https://www.sqlite.org/rescode.html

if TYPE_CHECKING:
    from django.db import Error
    from django.db.backends.base.base import BaseDatabaseWrapper


def is_conflict(error: Error) -> bool:
    """Did the statement change nothing because of another transaction, so that it may be sent again?"""
    return bool(error_codes(error) & CONFLICTS) or sqlite_code(error) in SQLITE_CONFLICTS


def error_codes(error: Error) -> set[Any]:
    """Return the driver's codes of the error."""
    cause: Any = error.__cause__ or error
    # psycopg 3, psycopg2, and the MySQL drivers, which give the number as the first argument.
    return {getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None), *cause.args[:1]}


def sqlite_code(error: Error) -> int | None:
    """Return SQLite's primary result code, if it is SQLite's error."""
    code = getattr(error.__cause__, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the rest of an extended code only says why


def is_in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Does the transaction of a ``TestCase`` enclose all that is done?"""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Has the thread a transaction open, or would its next statement begin one?"""
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    if connection.vendor == "sqlite":  # Django says "no autocommit" for a moment after the end, SQLite knows better
        return bool(connection.connection.in_transaction or connection.connection.isolation_level is not None)
    return not connection.autocommit


def after_transactions(call: Callable[[], None]) -> bool:
    """Call it once all transactions that the calling thread has open now have ended, by commit or rollback.

    Returns False, and never calls it, if there is none. That of a ``TestCase`` does not count. Django tells of a
    commit only, and only after the connection is back in autocommit; here it is told in the very moment of the end.
    """
    database = sys.modules.get("django.db")  # who never used it has no transaction
    if database is None:
        return False
    involved = [
        connection
        for connection in database.connections.all(initialized_only=True)
        if connection.connection is not None and is_in_transaction(connection) and not is_in_testcase(connection)
    ]
    if not involved:
        return False
    countdown = _Countdown(call, len(involved))
    for connection in involved:
        _ending_of(connection).waiting.append(countdown.one_less)
    return True


class _Countdown:
    def __init__(self, call: Callable[[], None], number: int) -> None:
        self._call = call
        self._left = number

    def one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._call()


class _Ending:
    """Tells those who wait when a connection's transaction has ended: by all ways in which it can."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.waiting: list[Callable[[], None]] = []
        wrapped: Any = connection
        wrapped._commit = self._then_tell(wrapped._commit)
        wrapped._rollback = self._then_tell(wrapped._rollback)
        wrapped._close = self._then_tell(wrapped._close, always=True)
        wrapped._set_autocommit = self._then_tell(wrapped._set_autocommit)  # MySQL commits

    def _then_tell(self, step: Callable[..., Any], always: bool = False) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            ended = always  # of a failed commit or rollback Django makes a rollback or a close
            try:
                result = step(*args)
                ended = args != (False,)  # autocommit goes off where no transaction is, or stays off
                return result
            finally:
                if ended:
                    self._tell()

        return call

    def _tell(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            try:
                call()
            except Exception:  # it would look like a failed commit
                logger.exception("What was to be done at the end of a transaction failed")


def _ending_of(connection: Any) -> _Ending:
    ending: _Ending | None = vars(connection).get("_django_locks_ending")
    if ending is None:
        ending = connection._django_locks_ending = _Ending(connection)
    return ending
