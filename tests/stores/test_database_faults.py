"""What a database may do to the store, and what its callers see of it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, connections, transaction
from django.test.utils import modify_settings

from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.stores.database import DatabaseStore
from tests.servers.fixtures_databases import Connect
from tests.stores.databases import (
    CONFLICTS,
    KINDS,
    ME,
    SERVERS,
    VERBS,
    GenericStore,
    alias_of,
    close,
    conflict,
    cut,
    expire,
    faulty,
    row,
)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_table_says_migrate(kind: str, connect: Connect, tmp_path: Any) -> None:
    if kind in SERVERS:
        with connections[connect(kind)].cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS bare")
            cursor.execute("CREATE DATABASE bare")
    name = "bare" if kind in SERVERS else str(tmp_path / "bare.sqlite3")
    store = DatabaseStore("default", connect(kind, "locks_bare", migrate=False, NAME=name))
    with pytest.raises(StoreUnavailable, match=r"could not acquire 'job'.*`manage.py migrate`") as caught:
        store.acquire("job", ME, 30, "me")
    assert caught.value.__cause__ is not None
    assert caught.value.name == "job"


def test_missing_app_says_how_to_install_it(connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    assert store.check() == []
    with modify_settings(INSTALLED_APPS={"remove": "django_locks"}):
        assert [message.id for message in store.check()] == ["django_locks.E005"]
        with pytest.raises(InvalidLockStore, match="INSTALLED_APPS"):
            store.acquire("job", ME, 30, "me")


@pytest.mark.parametrize("location", ["nowhere", ["nowhere"]])
def test_unknown_database_is_named(location: object) -> None:
    store = DatabaseStore("default", location)
    messages = store.check()
    assert [(message.id, bool(message.hint)) for message in messages] == [("django_locks.E006", True)]
    with pytest.raises(InvalidLockStore, match=r"'nowhere'\]? is no alias of DATABASES"):
        store.get("job")


def test_server_that_refuses_to_write_is_unavailable(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    connection = connections[alias_of(store)]
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    session = connection.connection
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.acquire("job", ME, 30, "me")
    assert connection.connection is session
    assert store.get("job") is None


def test_no_server_is_unavailable(connect: Connect) -> None:
    alias = connect("postgresql", "locks_down", migrate=False, PORT="1")
    with pytest.raises(StoreUnavailable):
        DatabaseStore("default", alias).acquire("job", ME, 30, "me")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", SERVERS)
def test_dead_connection_goes_unnoticed(kind: str, verb: str, connect: Connect) -> None:
    store = DatabaseStore("default", connect(kind))
    store.acquire("job", ME, 30, "me")
    store.acquire("old", ME, 30, "me")
    expire(store, "old")
    cut(store, connect(kind, "locks_other"))
    assert VERBS[verb](store)


@pytest.mark.parametrize("kind", SERVERS)
def test_server_that_is_down_is_unavailable_and_one_that_is_back_goes_unnoticed(
    kind: str, connect: Connect, request: pytest.FixtureRequest
) -> None:
    store, server = DatabaseStore("default", connect(kind)), request.getfixturevalue(kind)
    fence = store.acquire("job", ME, 60, "me")
    server.restart()
    assert store.acquire("job", ME, 60, "me") == fence
    server.stop()
    try:
        with pytest.raises(StoreUnavailable):
            store.renew([("job", ME, 60)])
        with pytest.raises(StoreUnavailable):
            store.release("job", ME)
    finally:
        server.start()
    assert store.release("job", ME) is True


def test_pool_of_dead_connections_goes_unnoticed(connect: Connect) -> None:
    pytest.importorskip("psycopg_pool")
    pooled = connect("postgresql", "locks_pool", OPTIONS={"pool": {"min_size": 3, "max_size": 3}})
    store, other = DatabaseStore("default", pooled), connect("postgresql")
    try:
        store.acquire("job", ME, 60, "me")
        connections[pooled].close()
        connections[pooled].pool.wait()
        with connections[other].cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            assert len(cursor.fetchall()) == 3
        assert store.release("job", ME) is True
    finally:
        connections[pooled].close_pool()


def test_dead_connection_in_a_transaction_is_left_to_its_owner(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    other = connect("postgresql", "locks_other")
    connection = connections[alias_of(store)]
    with suppress(OperationalError, InterfaceError), transaction.atomic(alias_of(store)):
        session = connection.connection
        cut(store, other)
        assert store.acquire("job", ME, 30, "me") is not None
        assert connection.connection is session
        raise OperationalError("as the caller's next statement would")


def test_release_whose_answer_was_lost_is_a_release(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    other = connect("postgresql", "locks_other")
    store.acquire("job", ME, 30, "me")

    def lose_the_answer() -> None:
        cut(store, other)
        raise OperationalError("server closed the connection unexpectedly")

    with faulty(store, after=lose_the_answer) as tries:
        assert store.release("job", ME) is True
    assert len(tries) == 2
    assert store.release("job", ME) is False


def test_grant_whose_answer_was_lost_is_asked_for_again(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    other = connect("postgresql", "locks_other")

    def lose_the_answer() -> None:
        cut(store, other)
        raise OperationalError("server closed the connection unexpectedly")

    with faulty(store, after=lose_the_answer):
        fence = store.acquire("job", ME, 30, "me")
    assert row(store, "job").fence == fence


@pytest.mark.parametrize("code", CONFLICTS)
@pytest.mark.parametrize("verb", VERBS)
def test_conflict_goes_unnoticed(verb: str, code: str, connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    store.acquire("job", ME, 30, "me")
    store.acquire("old", ME, 30, "me")
    expire(store, "old")
    with faulty(store, before=conflict(code)):
        assert VERBS[verb](store)


def test_lasting_conflict_is_unavailable(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    pauses: list[float] = []
    monkeypatch.setattr("django_locks.clock.sleep", pauses.append)
    with faulty(store, before=conflict("1213"), times=99) as tries, pytest.raises(StoreUnavailable, match="Deadlock"):
        store.acquire("job", ME, 30, "me")
    assert len(tries) == 20
    assert sum(pauses) < 2


def test_conflict_that_took_long_is_not_tried_again(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    times = iter([0.0, 5.1])
    monkeypatch.setattr("django_locks.clock.now", lambda: next(times, 5.1))
    with faulty(store, before=conflict("busy")) as tries, pytest.raises(StoreUnavailable):
        store.acquire("job", ME, 30, "me")
    assert len(tries) == 1


def test_release_refused_after_a_conflict_is_refused(connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    with faulty(store, before=conflict("40001")):
        assert store.release("job", ME) is False


def test_conflict_in_the_transaction_of_a_test_case_is_its_owner_s(connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    with transaction.atomic(alias_of(store)), faulty(store, before=conflict("40001")) as tries:
        connections[alias_of(store)].atomic_blocks[0]._from_testcase = True
        with pytest.raises(StoreUnavailable):
            store.acquire("job", ME, 30, "me")
        assert len(tries) == 1


def test_sqlite_writers_wait_for_each_other(connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite", OPTIONS={"timeout": 0.02}))
    fences: list[int | None] = []
    with transaction.atomic(alias_of(store)):
        with connections[alias_of(store)].cursor() as cursor:
            cursor.execute("DELETE FROM django_locks_lease")
        waiter = threading.Thread(target=lambda: (fences.append(store.acquire("job", ME, 30, "me")), close(store)))
        waiter.start()
        time.sleep(0.2)
    waiter.join()
    assert fences[0]


def test_generic_insert_refused_for_another_reason_is_unavailable(connect: Connect) -> None:
    store = GenericStore("default", connect("sqlite"))

    def fail() -> None:
        raise IntegrityError("NOT NULL constraint failed")

    with faulty(store, before=fail, only="INSERT"), pytest.raises(StoreUnavailable, match="NOT NULL"):
        store.acquire("job", ME, 30, "me")
    assert store.acquire("job", ME, 30, "me")


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
def test_notify_elsewhere_than_on_postgresql_is_refused(kind: str, connect: Connect) -> None:
    store = DatabaseStore("default", connect(kind), notify=True)
    assert [(message.id, bool(message.hint)) for message in store.check()] == [("django_locks.E003", True)]
    with pytest.raises(InvalidLockStore, match="'notify' is for PostgreSQL.*Remove the option"):
        store.acquire("job", ME, 30, "me")
    assert DatabaseStore("default", alias_of(store)).check() == []
