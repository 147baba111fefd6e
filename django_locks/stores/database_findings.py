"""What the state and the settings of a database mean for leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.db import Error

from django_locks.findings import FAIL, OK, WARN, Finding
from django_locks.stores.preparation import unapplied

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

STALE = 30 * 24 * 3600  # seconds
MANY = 100_000  # rows


def findings(connection: BaseDatabaseWrapper) -> Iterator[Finding]:
    """Yield what the database says of itself. Its own errors are passed on, except where it refuses to be asked."""
    yield _table(connection)
    look = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}.get(connection.vendor)
    if look is None:
        yield Finding(OK, "version", f"{connection.display_name}, through the ORM")
        return
    try:
        yield from look(connection)
    except Error as error:
        yield Finding(WARN, "settings", f"the database does not tell its settings: {error}")


def stale_rows(count: int) -> Finding:
    """Return what the number of names that have been free for ``STALE`` seconds means."""
    text = f"{count} name{'' if count == 1 else 's'} free for more than 30 days"
    if count < MANY:
        return Finding(OK, "stale rows", text, value=count)
    return Finding(WARN, "stale rows", text, "manage.py locks prune --older-than 30d", count)


def _table(connection: BaseDatabaseWrapper) -> Finding:
    missing = unapplied(connection)
    if not missing:
        return Finding(OK, "table", "there, and migrated")
    return Finding(FAIL, "table", f"missing migrations: {', '.join(missing)}", "Run `manage.py migrate`.", missing)


def _postgresql(connection: Any) -> Iterator[Finding]:
    version, isolation, standby, commit, fsync, backend = _row(
        connection,
        "SELECT current_setting('server_version'), current_setting('transaction_isolation'), pg_is_in_recovery(), "
        "current_setting('synchronous_commit'), current_setting('fsync'), pg_backend_pid()",
    )
    yield Finding(OK, "version", f"PostgreSQL {version}", value=version)
    yield _isolation(isolation)
    if standby:
        yield Finding(FAIL, "role", "it is a standby, and cannot be written to", "Let LOCATION name the primary.")
    lasting = commit != "off" and fsync == "on"
    yield _durability(lasting, f"synchronous_commit {commit}, fsync {fsync}")
    if _process_of(connection) not in (None, backend):
        text = "through a pooler such as PgBouncer, which is fine: each verb is one statement, in autocommit"
        yield Finding(OK, "pooler", text, value=True)


def _process_of(connection: Any) -> int | None:
    """Return the server process as the driver was told. A pooler makes one up, for it shares few among many."""
    driver = connection.connection
    info = getattr(driver, "info", None)
    return getattr(info, "backend_pid", None)


def _mysql(connection: Any) -> Iterator[Finding]:
    # MariaDB had no transaction_isolation before 11.1.
    variable = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
    version, isolation, read_only, flush, engine = _row(
        connection,
        f"SELECT VERSION(), @@{variable}, @@read_only, @@innodb_flush_log_at_trx_commit, (SELECT ENGINE FROM "  # noqa: S608
        "information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'django_locks_lease')",
    )
    yield Finding(OK, "version", f"{connection.display_name} {version}", value=version)
    yield _isolation(str(isolation).replace("-", " ").lower())
    if int(read_only):
        yield Finding(FAIL, "role", "it is read-only, as a replica", "Let LOCATION name the primary.")
    if engine and engine.lower() != "innodb":
        yield Finding(FAIL, "engine", f"the table has the engine {engine}", "Convert it to InnoDB.", engine)
    yield _durability(int(flush) == 1, f"innodb_flush_log_at_trx_commit {flush}")


def _sqlite(connection: Any) -> Iterator[Finding]:
    version, journal, synchronous = (
        _row(connection, sql)[0] for sql in ("SELECT sqlite_version()", "PRAGMA journal_mode", "PRAGMA synchronous")
    )
    yield Finding(OK, "version", f"SQLite {version}", value=version)
    yield Finding(OK, "isolation", f"one writer at a time, journal mode {journal}", value=journal)
    yield _durability(int(synchronous) > 0, f"synchronous {synchronous}")


def _isolation(level: str) -> Finding:
    if level != "serializable":
        return Finding(OK, "isolation", level, value=level)
    text = "serializable: takes of one lock conflict, and are asked again"
    return Finding(WARN, "isolation", text, "Give the leases an alias of DATABASES with read committed.", level)


def _durability(lasting: bool, settings: str) -> Finding:
    if lasting:
        return Finding(OK, "durability", settings, value=settings)
    text = f"{settings}: a crash of the server may forget the last leases"
    return Finding(WARN, "durability", text, "Let commits be flushed, or accept it.", settings)


def _row(connection: Any, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()
