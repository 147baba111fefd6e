"""What each database vendor is asked. Nothing here knows settings, retries or errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_locks.stores.sql.base import Statements
from django_locks.stores.sql.generic import GenericStatements
from django_locks.stores.sql.mysql import MySQLStatements
from django_locks.stores.sql.notify import NotifyingStatements
from django_locks.stores.sql.postgresql import PostgreSQLStatements
from django_locks.stores.sql.sqlite import OldSQLiteStatements, SQLiteStatements

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_locks.stores.waiting import Waiters

__all__ = ["VENDORS", "Statements", "statements_for"]

VENDORS: dict[str, type[Statements]] = {
    "postgresql": PostgreSQLStatements,
    "mysql": MySQLStatements,
    "sqlite": SQLiteStatements,
}


def statements_for(connection: BaseDatabaseWrapper, waiters: Waiters | None = None) -> Statements:
    """Return the statements for this connection's database. With ``waiters``, releases on PostgreSQL wake them."""
    kind = VENDORS.get(connection.vendor, GenericStatements)
    if waiters is not None and kind is PostgreSQLStatements:
        return NotifyingStatements(connection, waiters)
    if kind is SQLiteStatements and not connection.features.can_return_columns_from_insert:
        kind = OldSQLiteStatements
    return kind(connection)
