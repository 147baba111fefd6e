"""What the tests of the database store share: stores over each kind of database, and ways to break them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import OperationalError, connections

from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql import VENDORS, Statements
from django_locks.stores.sql.generic import GenericStatements
from django_locks.stores.sql.sqlite import OldSQLiteStatements
from tests.servers.fixtures_databases import Connect

ME, YOU, THEM = "a" * 32, "b" * 32, "c" * 32

KINDS = ["sqlite", "postgresql", "mariadb"]
SERVERS = ["postgresql", "mariadb"]


VERBS: dict[str, Callable[[DatabaseStore], object]] = {
    "acquire": lambda store: store.acquire("new", ME, 30, "me"),
    "renew": lambda store: store.renew([("job", ME, 30)]),
    "renew many": lambda store: store.renew([("job", ME, 30), ("other", ME, 30)]),
    "release": lambda store: store.release("job", ME),
    "get": lambda store: store.get("job"),
    "leases": lambda store: list(store.leases()),
    "prune": lambda store: store.prune(60),
}


class GenericStore(DatabaseStore):
    """As on a database that has no SQL of its own here."""

    def _sql(self, connection: Any) -> Statements:
        return GenericStatements(connection)


class OldSQLiteStore(DatabaseStore):
    def _sql(self, connection: Any) -> Statements:
        return OldSQLiteStatements(connection)


def store_of(kind: str, connect: Connect, *alias: str) -> DatabaseStore:
    """Return a store over a kind of database: "mariadb", "generic mariadb", "old sqlite"."""
    *adjective, name = kind.split()
    store = {"generic": GenericStore, "old": OldSQLiteStore}[adjective[0]] if adjective else DatabaseStore
    return store("default", connect(name, *alias))


def alias_of(store: DatabaseStore) -> str:
    return str(store.location)


def row(store: DatabaseStore, name: str) -> Any:
    from django_locks.models import Lease

    return Lease.objects.using(alias_of(store)).get(name=name)


def expire(store: DatabaseStore, name: str) -> None:
    from django_locks.models import Lease

    ended = datetime.now(UTC) - timedelta(days=2)  # the generic clock of MariaDB is local time
    Lease.objects.using(alias_of(store)).filter(name=name).update(expires_at=ended)


def close(store: DatabaseStore) -> None:
    connections[alias_of(store)].close()


def at(store: DatabaseStore, now: int) -> None:
    """Stop the database's clock, for this store, at so many microseconds since the epoch."""
    connection = connections[alias_of(store)]
    stopped = type("Stopped", (VENDORS[connection.vendor],), {"now": str(now), "_has_functions": False})
    store._statements[connection.vendor] = stopped(connection)


def cut(store: DatabaseStore, other: str) -> None:
    """End the store's session from another one, as a restart or an idle time-out does."""
    mysql = connections[other].vendor == "mysql"
    with connections[alias_of(store)].cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()" if mysql else "SELECT pg_backend_pid()")
        session = cursor.fetchone()[0]
    with connections[other].cursor() as cursor:
        cursor.execute(f"KILL {session}" if mysql else f"SELECT pg_terminate_backend({session}, 5000)")


class DriverError(Exception):
    """As psycopg's and sqlite3's, which carry their codes as attributes; MySQL's have it for an argument."""

    def __init__(self, *args: object, **codes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(codes)


CONFLICTS = {
    "40001": DriverError("could not serialize access", sqlstate="40001"),
    "40P01": DriverError("deadlock detected", pgcode="40P01"),
    "1213": DriverError(1213, "Deadlock found when trying to get lock"),
    "1205": DriverError(1205, "Lock wait timeout exceeded"),
    "busy": DriverError("database is locked", sqlite_errorcode=517),
}


def conflict(code: str) -> Callable[[], None]:
    def fail() -> None:
        raise OperationalError(*CONFLICTS[code].args) from CONFLICTS[code]

    return fail


@contextmanager
def faulty(
    store: DatabaseStore,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], None] = lambda: None,
    times: int = 1,
    only: str = "",
) -> Iterator[list[str]]:
    """Run the hooks around the first statements of the store; yield the statements as they come."""
    tries: list[str] = []

    def wrapper(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        if "django_locks_lease" not in sql or only not in sql:
            return execute(sql, parameters, many, context)
        tries.append(sql)
        first = len(tries) <= times
        if first:
            before()
        result = execute(sql, parameters, many, context)
        if first:
            after()
        return result

    with connections[alias_of(store)].execute_wrapper(wrapper):
        yield tries


def wait_until(condition: Callable[[], bool], timeout: float = 10) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def in_threads(store: DatabaseStore, work: Callable[[str], None], owners: list[str]) -> None:
    errors: list[BaseException] = []

    def run(owner: str) -> None:
        try:
            work(owner)
        except BaseException as error:
            errors.append(error)
        finally:
            close(store)

    threads = [threading.Thread(target=run, args=[owner]) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
