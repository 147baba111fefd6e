"""The making of the tables by one process of many, before there is a lease that could exclude the others.

The app's own migrations are applied, as `migrate` does, so that a later `migrate` finds them recorded. Meanwhile the
vendor's own kind of lock keeps other processes out; it ends with its holder, however that ends:

- PostgreSQL: an advisory lock of the transaction in which all migrations are. A lock of the session would be left
  behind by a pooler such as PgBouncer.
- MySQL, MariaDB: GET_LOCK. Each statement of a migration is a transaction of its own there, so one that is killed in
  between may leave half a migration, as with `migrate`.
- SQLite: BEGIN IMMEDIATE, which locks the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, transaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

PATIENCE = 60  # seconds to wait for another process that applies the migrations
APP = "django_locks"
ADVISORY_LOCK = int.from_bytes(hashlib.sha256(b"django_locks.prepare").digest()[:8], signed=True)


def prepare(connection: BaseDatabaseWrapper) -> list[str]:
    """Apply the app's migrations that are missing, and return their names; none on a database without such a lock."""
    alone = _ALONE.get(connection.vendor)
    if alone is None:
        return []
    with alone(connection):
        return _migrate(connection)


def unapplied(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the names of the app's migrations that are missing."""
    return [name for _, name in _missing(_executor(connection))]


def _migrate(connection: BaseDatabaseWrapper) -> list[str]:
    executor = _executor(connection)
    missing = _missing(executor)
    if missing:
        # Not the command: its signals would let other apps look for tables that are not there yet.
        executor.migrate(executor.loader.graph.leaf_nodes(APP))
    return [name for _, name in missing]


def _executor(connection: BaseDatabaseWrapper) -> Any:
    from django.db.migrations.executor import MigrationExecutor

    return MigrationExecutor(connection)


def _missing(executor: Any) -> list[tuple[str, str]]:
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes(APP))
    return [(migration.app_label, migration.name) for migration, _ in plan]


@contextmanager
def _by_advisory_lock(connection: BaseDatabaseWrapper) -> Iterator[None]:
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        # A snapshot from before the wait would not show what the other process has made.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{PATIENCE}s"])
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADVISORY_LOCK])
        yield


@contextmanager
def _by_named_lock(connection: BaseDatabaseWrapper) -> Iterator[None]:
    # The name is the whole server's.
    database = hashlib.sha256(str(connection.settings_dict["NAME"]).encode()).hexdigest()[:32]
    name = f"django_locks.{database}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, %s)", [name, PATIENCE])
        if cursor.fetchone()[0] != 1:
            raise OperationalError(f"another process has been applying the migrations for {PATIENCE} s")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT RELEASE_LOCK(%s)", [name])


@contextmanager
def _by_write_lock(connection: Any) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        patience = int(cursor.fetchone()[0])
        cursor.execute(f"PRAGMA busy_timeout = {PATIENCE * 1000}")
    connection.disable_constraint_checking()  # its schema editor wants it, and inside a transaction it is too late
    mode, connection.transaction_mode = connection.transaction_mode, "IMMEDIATE"
    try:
        with transaction.atomic(using=connection.alias):
            yield
    finally:
        connection.transaction_mode = mode
        connection.enable_constraint_checking()
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {patience}")


_ALONE: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "postgresql": _by_advisory_lock,
    "mysql": _by_named_lock,
    "sqlite": _by_write_lock,
}
