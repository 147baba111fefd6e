"""Leases in a table of a database of the project: PostgreSQL, MySQL, MariaDB, SQLite, or another that Django knows."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core import checks
from django.db import Error, connections
from django.views.decorators.debug import sensitive_variables

from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.findings import OK, Finding
from django_locks.instants import from_micros
from django_locks.stores import database_findings, preparation
from django_locks.stores.base import RELEASED, Asking, BaseStore, Claim
from django_locks.stores.connections import (
    close_private,
    connection_to,
    is_confined,
    leave_thread,
    may_be_confined,
    private_copy,
)
from django_locks.stores.sql import Statements, faults, statements_for
from django_locks.stores.sql.notify import PostgreSQLPush
from django_locks.text import without_passwords
from django_locks.transactions import is_conflict, is_in_transaction
from django_locks.values import LeaseInfo

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")

APP_MISSING = "its table belongs to an app that is not installed"
APP_HINT = "Add 'django_locks' to INSTALLED_APPS and run `manage.py migrate`, or choose another BACKEND in LOCKS."
ALIAS_HINT = "Let LOCATION name an alias of DATABASES, or leave it out for 'default'."
NOTIFY = "its option 'notify' is for PostgreSQL, and its database is another."
NOTIFY_HINT = "Remove the option: waiters look again and again, at growing intervals."

_notifying: weakref.WeakSet[DatabaseStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_notifying):
        store._push.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class DatabaseStore(BaseStore):
    """LOCATION is an alias of DATABASES; ``"default"`` without one.

    Each verb is one statement, on a connection that `django_locks.stores.connections` chooses. No router is asked: a
    replica that lags must never say who holds a lock.

    ``notify=True`` (PostgreSQL with psycopg 3, no pooler in transaction mode): waiters are woken by LISTEN and NOTIFY.
    """

    #: Leases renewed, listed or forgotten by one statement.
    batch = 1000

    def __init__(self, alias: str, location: Any = None, key_prefix: str = "", *, notify: bool = False) -> None:
        super().__init__(alias, location, key_prefix)
        self._notify = notify
        if notify:
            self.waiters.push = self._push = PostgreSQLPush(self.waiters, lambda: private_copy(self._database))
            _notifying.add(self)
        self._database = self.database_alias = location or "default"
        self._statements: dict[str, Statements] = {}
        self._checked: object = None  # the installed apps with which the settings were found to be right

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        return self._run("acquire", name, lambda sql, connection: sql.acquire(connection, name, owner, ttl, holder))

    def renew(self, leases: Sequence[Claim]) -> set[str]:
        if len(leases) == 1:
            return self._renew_one(*leases[0])
        self._require_settings()
        size = min(self.batch, self._sql(connections[self._database]).renewed_at_once)
        starts = range(0, len(leases), size)
        return set[str]().union(*(self._renew_many(leases[start : start + size]) for start in starts))

    def _renew_one(self, name: str, owner: str, ttl: float) -> set[str]:
        ours = self._run("renew", name, lambda sql, connection: sql.renew_one(connection, name, owner, ttl))
        return {name} if ours else set()

    def _renew_many(self, leases: Sequence[Claim]) -> set[str]:
        return self._run("renew", "", lambda sql, connection: sql.renew(connection, leases))

    def release(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        maybe_done = False

        def step(sql: Statements, connection: BaseDatabaseWrapper) -> bool:
            nonlocal maybe_done
            try:
                # Done by a try whose answer was lost: then it is not ours any more because of us.
                return sql.release(connection, name, owner, hold_for, outcome) or maybe_done
            except Error as error:
                maybe_done = maybe_done or not is_conflict(error)
                raise

        return self._run("release", name, step)

    def get(self, name: str) -> LeaseInfo | None:
        return self._run("read", name, lambda sql, connection: sql.get(connection, name))

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        after = ""
        while page := self._page(prefix, after):
            # MySQL takes "a" for the same as "a ".
            yield from (lease for lease in page if lease.name.startswith(prefix))
            after = page[-1].name

    def _page(self, prefix: str, after: str) -> list[LeaseInfo]:
        return self._run("list", prefix, lambda sql, connection: sql.page(connection, prefix, after, self.batch))

    def prune(self, older_than: float) -> int:
        forgotten, after = 0, ""
        while names := self._free_names(older_than, after):
            forgotten += self._forget(names, older_than)
            after = names[-1]
        return forgotten

    def _free_names(self, older_than: float, after: str) -> list[str]:
        return self._run("prune", "", lambda sql, c: sql.free_names(c, older_than, after, self.batch))

    def _forget(self, names: Sequence[str], older_than: float) -> int:
        return self._run("prune", "", lambda sql, connection: sql.forget(connection, names, older_than))

    def count_free(self, older_than: float) -> int:
        return self._run("count free names", "", lambda sql, connection: sql.count_free(connection, older_than))

    def prepare(self) -> str:
        """Apply the app's missing migrations if the table is missing, or one of its columns."""
        if self._has_table():
            return ""
        connection = connections[self._database]
        if is_in_transaction(connection):
            return ""
        try:
            with Asking():
                made = preparation.prepare(connection)
        except Error as error:
            raise self.unavailable("prepare", "", f"its table is missing, and could not be made: {error}") from error
        return f"applied {', '.join(made)} of django_locks to the database {self._database!r}" if made else ""

    def _has_table(self) -> bool:
        try:
            return self._run("read", "", lambda sql, connection: sql.read_all_columns(connection))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, Error) and faults.is_table_missing(error.__cause__):
                return False
            raise

    def diagnose(self) -> Iterator[Finding]:
        findings = self._run("examine", "", lambda sql, connection: list(database_findings.findings(connection)))
        yield from findings
        if all(finding.topic != "table" or finding.level == OK for finding in findings):
            yield database_findings.stale_rows(self.count_free(database_findings.STALE))

    def clock(self) -> datetime:
        """Return the database server's time, aware, UTC: what its rows are to be compared with."""
        return from_micros(self._run("read the clock", "", lambda sql, connection: sql.clock(connection)))

    def check(self) -> list[checks.CheckMessage]:
        messages: list[checks.CheckMessage] = []
        if not apps.is_installed("django_locks"):
            what = f"LOCKS[{self.alias!r}] keeps its leases in the database, but {APP_MISSING}."
            messages.append(checks.Error(what, hint=APP_HINT, id="django_locks.E005"))
        if not self._is_configured():
            location = without_passwords(repr(self._database))
            what = f"LOCKS[{self.alias!r}] has the LOCATION {location}, which is no alias of DATABASES."
            messages.append(checks.Error(what, hint=ALIAS_HINT, id="django_locks.E006"))
        elif self._cannot_notify():
            what = f"LOCKS[{self.alias!r}]: {NOTIFY}"
            messages.append(checks.Error(what, hint=NOTIFY_HINT, id="django_locks.E003"))
        return messages

    def _is_configured(self) -> bool:
        return isinstance(self._database, str) and self._database in connections.settings

    def leave_thread(self) -> None:
        if self._database in connections.settings:
            leave_thread(self._database)

    def close(self) -> None:
        close_private(self._database)

    def is_in_database(self, alias: str) -> bool:
        ours, other = connections[self._database].settings_dict, connections[alias].settings_dict
        return alias == self._database or all(ours[key] == other[key] for key in ("ENGINE", "NAME", "HOST", "PORT"))

    @sensitive_variables()
    def lock_row(self, alias: str, claim: Claim) -> bool:
        self._require_settings()
        with Asking():
            return self._sql(connections[alias]).lock(connections[alias], *claim)

    def is_confined(self) -> bool:
        return is_confined(connections[self._database])

    async def ais_confined(self) -> bool:
        if not may_be_confined(self._database):
            return False
        return await sync_to_async(self.is_confined)()

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        self._require_settings()
        if await self.ais_confined():
            return await sync_to_async(call)(*args)
        return await super()._in_thread(call, *args)

    @sensitive_variables()  # the driver's functions have the owner among their parameters
    def _run(self, verb: str, name: str, step: Callable[[Statements, BaseDatabaseWrapper], T]) -> T:
        self._require_settings()
        chosen = connection_to(self._database)
        try:
            with Asking(), chosen as connection:
                return faults.persist(connection, step, self._sql(connection))
        except Error as error:
            why = faults.MIGRATE.format(self._database) if faults.is_table_missing(error) else error
            raise self.unavailable(verb, name, why) from error

    def _sql(self, connection: BaseDatabaseWrapper) -> Statements:
        statements = self._statements.get(connection.vendor)
        if statements is None:
            statements = self._statements[connection.vendor] = statements_for(
                connection, self.waiters if self._notify else None
            )
        return statements

    def _cannot_notify(self) -> bool:
        return self._notify and not connections.settings[self._database]["ENGINE"].endswith("postgresql")

    def _require_settings(self) -> None:
        if self._checked is apps.app_configs and self._database in connections.settings:
            return
        if not apps.is_installed("django_locks"):
            raise InvalidLockStore(f"The lock store {self.alias!r}: {APP_MISSING}. {APP_HINT}", alias=self.alias)
        if not self._is_configured():
            location = without_passwords(repr(self._database))
            message = f"The lock store {self.alias!r}: {location} is no alias of DATABASES. {ALIAS_HINT}"
            raise InvalidLockStore(message, alias=self.alias)
        if self._cannot_notify():
            message = f"The lock store {self.alias!r}: {NOTIFY} {NOTIFY_HINT}"
            raise InvalidLockStore(message, alias=self.alias)
        self._checked = apps.app_configs
