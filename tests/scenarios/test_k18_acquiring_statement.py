"""K18: read-then-write, misread row counts, errors taken for a refusal."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, connections, transaction

from django_locks import StoreUnavailable, locks
from tests.crew import Crew, Spec
from tests.scenarios.actors import LONG
from tests.stores.test_race import race, winners

ROUNDS = 500 if LONG else 150


def test_race_for_an_expired_row_has_exactly_one_winner(database_store: Spec, crew: Crew) -> None:
    """B072"""
    from django_locks.models import Lease

    name, ended = uuid.uuid4().hex, datetime.now(UTC) - timedelta(days=2)
    rows = [
        Lease(name=f"{name}:{number}", owner="x", fence=1, acquired_at=ended, expires_at=ended)
        for number in range(ROUNDS)
    ]
    Lease.objects.using(database_store.locks["LOCATION"]).bulk_create(rows)
    results = crew.run(database_store, race, name, ROUNDS)
    assert {tuple(found) for found in winners(list(zip(*results, strict=True)))} == {(2,)}


@contextmanager
def statements_fail(alias: str, error: Exception) -> Iterator[None]:
    def fail(execute: Any, sql: str, *args: Any) -> Any:
        if "django_locks_lease" in sql:
            raise error
        return execute(sql, *args)

    with connections[alias].execute_wrapper(fail):
        yield


FAULTS = [
    OperationalError("server closed the connection unexpectedly"),
    InterfaceError("connection already closed"),
    OperationalError("could not extend file: No space left on device"),
    OperationalError("canceling statement due to statement timeout"),
    DatabaseError("permission denied for table django_locks_lease"),
    IntegrityError("null value in column holder violates not-null constraint"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_error_of_the_database_is_no_refusal(database_store: Spec, fault: Exception, name: str) -> None:
    """B075"""
    with statements_fail(database_store.locks["LOCATION"], fault):
        with pytest.raises(StoreUnavailable) as caught:
            locks.try_acquire(name)
    assert caught.value.__cause__ is fault
    assert locks.get(name) is None


@pytest.fixture
def postgresql_session(spec_of: Any, settings: Any) -> Any:
    spec = spec_of("postgresql")
    settings.LOCKS = {"default": spec.locks}
    return connections[spec.locks["LOCATION"]]


def run(connection: Any, *statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_missing_permission_is_no_refusal(postgresql_session: Any, name: str) -> None:
    """B075"""
    run(postgresql_session, "CREATE ROLE nobody_special", "SET ROLE nobody_special")
    try:
        with pytest.raises(StoreUnavailable, match="permission denied"):
            locks.try_acquire(name)
    finally:
        run(postgresql_session, "RESET ROLE", "DROP ROLE nobody_special")


def test_statement_time_out_is_no_refusal(postgresql_session: Any, connect: Any, name: str) -> None:
    """B075"""
    locks.acquire(name).release()
    other = connect("postgresql", "locks_other")
    run(postgresql_session, "SET statement_timeout = 100")
    with transaction.atomic(other):
        run(connections[other], "SELECT * FROM django_locks_lease FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            locks.try_acquire(name)
    locks.acquire(name).release()
