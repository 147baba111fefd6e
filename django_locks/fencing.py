"""Commits that only the holder can make, and queries that only the holder can send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from . import clock
from .stores.base import BaseStore, Claim, here
from .transactions import is_conflict

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
    def stand_still(self) -> AbstractContextManager[Callable[[], None]]: ...
    def lose(self, why: str) -> NoReturn: ...


OVERTAKEN = "was overtaken by a newer holder before the commit: nothing was committed"


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
    return _by_write_lock if connection.vendor == "sqlite" else _by_lease_row


@contextmanager
def _by_lease_row(guard: Fenced, connection: BaseDatabaseWrapper) -> Iterator[None]:
    # A takeover is a committed write to the lease's row. It came before the last statement, which finds another owner,
    # or waits the moment until the commit. Locked earlier, the row would block our own renewals and a successor.
    with _transaction(connection.alias, durable=True):
        yield
        with _conflict_is_loss(guard):
            ours = guard.store.lock_row(connection.alias, guard.claim(0))
        if not ours:
            guard.lose(OVERTAKEN)


@contextmanager
def _by_write_lock(guard: Fenced, connection: BaseDatabaseWrapper) -> Iterator[None]:
    # SQLite has one writer at a time: who renews first in his transaction cannot be overtaken until it ends.
    with guard.stand_still() as go_on, _transaction(connection.alias, durable=True):
        _renew_in_transaction(guard, connection.alias)
        yield
        _renew_in_transaction(guard, connection.alias)
        go_on()


def _renew_in_transaction(guard: Fenced, alias: str) -> None:
    with _conflict_is_loss(guard):
        ours = guard.store.lock_row(alias, guard.claim(clock.now()))
    if not ours:
        guard.lose(OVERTAKEN)


@contextmanager
def _by_fence_table(guard: Fenced, connection: BaseDatabaseWrapper) -> Iterator[None]:
    # The lease is elsewhere. Whoever comes later raises the row in a commit of its own before it begins, so that the
    # last statement of an earlier one finds it higher, or makes the later one wait the moment until the commit.
    from .models import Fence

    if not Fence.raise_to(connection.alias, guard.key, guard.fence):
        guard.lose(OVERTAKEN)
    with _transaction(connection.alias, durable=True):
        if connection.vendor == "sqlite":
            _hold_fence(guard, connection)
        yield
        if guard.key not in guard.store.renew([guard.claim(clock.now())]):
            guard.lose("is not ours any more")
        _hold_fence(guard, connection)


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
        if is_conflict(error):
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

    def __init__(self, guard: Fenced, using: str | None) -> None:
        from django.db import connections

        self._check = guard.check
        self._wrappers = connections[using or guard.store.database_alias or "default"].execute_wrappers
        self._wrappers.append(self)

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not here.asking:  # the locks' own statements go on: a lost holder gives other locks back
            self._check()
        return execute(sql, params, many, context)

    def lift(self) -> None:
        """Let queries go unasked again."""
        if self in self._wrappers:
            self._wrappers.remove(self)
