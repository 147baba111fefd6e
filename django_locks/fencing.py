"""Commits that only the holder can make, and queries that only the holder can send."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from . import clock
from .exceptions import LeaseLost
from .stores.base import Asking, BaseStore, Claim, here
from .transactions import is_conflict, is_in_testcase

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class Fenced(Protocol):
    """What is asked of a guard."""

    @property
    def store(self) -> BaseStore: ...
    @property
    def key(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def fence(self) -> int: ...
    def check(self) -> None: ...
    def claim(self, now: float) -> Claim: ...
    def stand_still(self) -> AbstractContextManager[Callable[[float], None]]: ...
    def lose(self, why: str) -> NoReturn: ...


OVERTAKEN = "was overtaken by a newer holder before the commit: nothing was committed"
MOST_TRIES = 10
LONGEST_STOP = 2.0  # seconds between the last statement and the commit


@contextmanager
def fenced_atomic(guard: Fenced, using: str | None) -> Iterator[None]:
    """Run a transaction that commits only if no newer holder has come. See `LockGuard.atomic`."""
    from django.db import connections

    guard.check()
    alias = using or guard.store.database_alias or "default"
    connection = connections[alias]
    if _is_inside(guard, connection):
        with _transaction(alias):
            yield
        return
    _require_autocommit(guard, connection)
    with _inside(guard, connection), _way(guard, connection)(guard, connection):
        yield


def _way(guard: Fenced, connection: BaseDatabaseWrapper) -> Callable[..., AbstractContextManager[None]]:
    if not guard.store.is_in_database(connection.alias):
        return _by_fence_table
    if connection.vendor == "sqlite":
        return _by_write_lock
    return _by_lease_row if _sees_commits(connection) else _by_fence_table


def _sees_commits(connection: Any) -> bool:
    """Does each statement of a transaction see all that is committed before it?

    From REPEATABLE READ on, the lease's row as its own renewals change it would look like a conflict.
    """
    connection.ensure_connection()
    level = getattr(connection, "isolation_level", "read committed")
    return str(getattr(level, "name", level)).lower().replace("_", " ") == "read committed"


@contextmanager
def _by_lease_row(guard: Fenced, connection: BaseDatabaseWrapper) -> Iterator[None]:
    # A takeover is a committed write to the lease's row. It came before the last statement, which finds another owner,
    # or waits the moment until the commit. Locked earlier, the row would block our own renewals and a successor.
    _raise_fence(guard, connection, create=False)  # for an earlier holder that is fenced by it
    with _bounded_stop(connection) as bound, _transaction(connection.alias, durable=True):
        yield
        bound()
        with _conflict_is_loss(guard):
            ours = guard.store.lock_row(connection.alias, guard.claim(0))
        if not ours:
            guard.lose(OVERTAKEN)
        guard.check()


@contextmanager
def _by_write_lock(guard: Fenced, connection: BaseDatabaseWrapper) -> Iterator[None]:
    # SQLite has one writer at a time: who renews first in his transaction cannot be overtaken until it ends.
    with guard.stand_still() as renewed, _transaction(connection.alias, durable=True):
        _renew_in_transaction(guard, connection.alias, renewed)
        yield
        _renew_in_transaction(guard, connection.alias, renewed)


def _renew_in_transaction(guard: Fenced, alias: str, renewed: Callable[[float], None]) -> None:
    sent = clock.now()  # not later: it may have to wait, or be stopped before it hears the answer
    if not guard.store.lock_row(alias, guard.claim(sent)):
        guard.lose(OVERTAKEN)
    renewed(sent)
    guard.check()


@contextmanager
def _by_fence_table(guard: Fenced, connection: BaseDatabaseWrapper) -> Iterator[None]:
    # The lease is elsewhere. Whoever comes later raises the row in a commit of its own before it begins, so that the
    # last statement of an earlier one finds it higher, or makes the later one wait the moment until the commit. Who
    # had come before the row was made is found by asking the store.
    _raise_fence(guard, connection, create=True)
    with _bounded_stop(connection) as bound, _transaction(connection.alias, durable=True):
        if connection.vendor == "sqlite":
            _hold_fence(guard, connection)
        yield
        if not _is_ours(guard):
            guard.lose("was not ours any more before the commit: nothing was committed")
        bound()
        _hold_fence(guard, connection)
        guard.check()


def forget(store: BaseStore, older_than: float, dry_run: bool = False) -> int:
    """Forget the fences, in the database of the leases or ``default``, of grants from before so many seconds.

    Returns how many. A holder of today whose grant is older has his row made again by his next `LockGuard.atomic`.
    """
    from django.db import DatabaseError, connections
    from django.utils.connection import ConnectionDoesNotExist

    from .models import Fence

    try:
        rows = Fence.forgettable(connections[store.database_alias or "default"].alias, older_than)
        return rows.count() if dry_run else rows.delete()[0]
    except (DatabaseError, ConnectionDoesNotExist):  # there is no such table: nobody fences anything here
        return 0


@contextmanager
def _bounded_stop(connection: Any) -> Iterator[Callable[[], None]]:
    """Enter with a call for just before the last statement of a transaction: it lets the server end the transaction
    of a process that is stopped before its commit, for which a successor would wait. MySQL knows no such limit.
    """
    restores = False

    def bound() -> None:
        nonlocal restores
        if is_in_testcase(connection):
            return
        if connection.vendor == "postgresql":  # until the end of the transaction
            _send(connection, f"SET LOCAL idle_in_transaction_session_timeout = {LONGEST_STOP * 1000:.0f}")
        elif connection.vendor == "mysql" and connection.mysql_is_mariadb:
            limit = f"SESSION idle_transaction_timeout = {LONGEST_STOP:.0f}"
            _send(connection, f"SET @django_locks_before = @@SESSION.idle_transaction_timeout, {limit}")
            restores = True

    try:
        yield bound
    finally:
        if restores:
            _send_if_alive(connection, "SET SESSION idle_transaction_timeout = @django_locks_before")


def _send(connection: BaseDatabaseWrapper, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _send_if_alive(connection: BaseDatabaseWrapper, sql: str) -> None:
    from django.db import Error

    if connection.connection is not None:
        with suppress(Error), Asking():  # it goes out although the lease is lost
            _send(connection, sql)


def _raise_fence(guard: Fenced, connection: BaseDatabaseWrapper, create: bool) -> None:
    from django.db import Error

    from .models import Fence

    for tries_left in reversed(range(MOST_TRIES)):
        try:
            if not Fence.raise_to(connection.alias, guard.key, guard.fence, create=create):
                guard.lose(OVERTAKEN)
            return
        except Error as error:
            if not tries_left or connection.in_atomic_block or not is_conflict(error):
                raise


def _is_ours(guard: Fenced) -> bool:
    return guard.key in guard.store.renew([guard.claim(clock.now())])


def _hold_fence(guard: Fenced, connection: BaseDatabaseWrapper) -> None:
    from .models import Fence

    with _conflict_is_loss(guard):
        ours = Fence.hold(connection.alias, guard.key, guard.fence)
    if not ours:
        guard.lose(OVERTAKEN)


@contextmanager
def _conflict_is_loss(guard: Fenced) -> Iterator[None]:
    from django.db import Error

    try:
        yield
    except Error as error:
        # With a deadlock, or a transaction that cannot be serialized, the lease has nothing to do.
        if is_conflict(error) and not _is_ours(guard):
            guard.lose(OVERTAKEN)
        raise


def _transaction(alias: str, durable: bool = False) -> AbstractContextManager[None]:
    from django.db import transaction

    return transaction.atomic(using=alias, durable=durable)


def _require_autocommit(guard: Fenced, connection: BaseDatabaseWrapper) -> None:
    from django.db.transaction import TransactionManagementError

    if not connection.in_atomic_block and not connection.get_autocommit():
        raise TransactionManagementError(
            f"guard.atomic() of {guard.key!r} must make the commit itself, and the connection {connection.alias!r} has "
            "autocommit off."
        )


def _is_inside(guard: Fenced, connection: Any) -> bool:
    return connection.in_atomic_block and vars(connection).get("_django_locks_fenced") is guard


@contextmanager
def _inside(guard: Fenced, connection: Any) -> Iterator[None]:
    before = vars(connection).get("_django_locks_fenced")
    connection._django_locks_fenced = guard
    try:
        yield
    finally:
        connection._django_locks_fenced = before


class Enforcement:
    """Lets every query of a connection ask the guard first, until it is lifted."""

    def __init__(self, guard: Fenced, using: str | None, of_task: bool = False) -> None:
        from django.db import connections

        self._guard = weakref.ref(guard)  # the connection must not keep a guard that was dropped
        self._of_task = of_task
        self._wrappers = connections[using or guard.store.database_alias or "default"].execute_wrappers
        self._wrappers.insert(0, self)  # Django takes away the last one, whoever has put it there

    @classmethod
    async def of_task(cls, guard: Fenced, using: str | None) -> Self:
        """Install it where the calling task's queries run; those of other tasks run there too, and are not asked."""
        from asgiref.sync import sync_to_async

        enforcement = await sync_to_async(cls)(guard, using, True)
        _of_task.set((*(other for other in _of_task.get() if other in other._wrappers), enforcement))
        return enforcement

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not here.asking and (not self._of_task or self in _of_task.get()):
            self._ask(sql)  # the locks' own statements go on: a lost holder gives other locks back
        return execute(sql, params, many, context)

    def _ask(self, sql: Any) -> None:
        guard = self._guard()
        try:
            if guard is not None:
                guard.check()
        except LeaseLost:
            # Who may not write must still be able to undo: Django goes on after a savepoint that it could not undo.
            if not str(sql).startswith(UNDO):
                raise

    def lift(self) -> None:
        """Let queries go unasked again."""
        if self in self._wrappers:
            self._wrappers.remove(self)


UNDO = ("ROLLBACK TO", "RELEASE SAVEPOINT")  # Django sends the second one after the first one, too
_of_task: ContextVar[tuple[Enforcement, ...]] = ContextVar("django_locks_enforcements", default=())
