"""PostgreSQL's function for an attempt, and the store without it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext

import psutil
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_locks.exceptions import StoreUnavailable
from django_locks.stores.database import DatabaseStore
from tests.servers import databases
from tests.servers.databases import Server
from tests.servers.fixtures_databases import Connect
from tests.servers.fixtures_redis import started
from tests.stores.databases import ME, YOU, alias_of, expire, row

SIGNATURE = "django_locks_lease_acquire(varchar, varchar, varchar, bigint)"


@pytest.fixture
def store(connect: Connect) -> DatabaseStore:
    return DatabaseStore("default", connect("postgresql"))


@pytest.fixture
def bare_store(connect: Connect) -> Iterator[DatabaseStore]:
    """A store on a database whose function somebody has dropped."""
    alias = connect("postgresql")
    call_command("migrate", "django_locks", "0001", database=alias, verbosity=0)
    yield DatabaseStore("default", alias)
    call_command("migrate", "django_locks", database=alias, verbosity=0)


def asked(store: DatabaseStore, owner: str = ME) -> list[str]:
    with CaptureQueriesContext(connections[alias_of(store)]) as queries:
        store.acquire("job", owner, 30, "me")
    return [query["sql"].split("(")[0].strip() for query in queries]


def test_attempt_calls_the_function(store: DatabaseStore) -> None:
    assert asked(store) == ["SELECT django_locks_lease_acquire"]
    assert row(store, "job").owner == ME


def test_missing_function_is_asked_for_once(bare_store: DatabaseStore) -> None:
    assert bare_store.acquire("job", ME, 30, "me") is not None
    assert all("INSERT" in statement for statement in asked(bare_store, YOU))
    assert bare_store.acquire("job", YOU, 30, "you") is None


@pytest.mark.parametrize("database", ["store", "bare_store"])
def test_notifying_release_says_whether_somebody_waits(database: str, request: pytest.FixtureRequest) -> None:
    alias = alias_of(request.getfixturevalue(database))
    store = DatabaseStore("default", alias, notify=True)
    for name, waited in (("lonely", False), ("wanted", True)):
        store.acquire(name, ME, 30, "me")
        with store.watch(name) if waited else nullcontext():
            deadline = time.monotonic() + 10
            while waited and not store.waiters.is_pushed(name):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert store.release(name, YOU) is False
            assert store.release(name, ME) is True
        assert (name in store.waiters.rivals._given_back) is waited
    store.close()


def test_missing_function_does_not_break_the_transaction_of_a_test_case(bare_store: DatabaseStore) -> None:
    alias = alias_of(bare_store)
    with transaction.atomic(alias):
        connections[alias].atomic_blocks[0]._from_testcase = True
        assert bare_store.acquire("job", ME, 30, "me") is not None
        assert bare_store.release("job", ME) is True
        transaction.set_rollback(True, alias)


def test_function_that_may_not_be_called_is_done_without(store: DatabaseStore) -> None:
    connection = connections[alias_of(store)]
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS poor")
        cursor.execute("CREATE ROLE poor")
        cursor.execute("GRANT ALL ON django_locks_lease TO poor")
        cursor.execute(f"REVOKE EXECUTE ON FUNCTION {SIGNATURE} FROM PUBLIC")
        cursor.execute("SET ROLE poor")
    try:
        assert store.acquire("job", ME, 30, "me") is not None
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")
            cursor.execute(f"GRANT EXECUTE ON FUNCTION {SIGNATURE} TO PUBLIC")
            cursor.execute("DROP OWNED BY poor")
            cursor.execute("DROP ROLE poor")


def test_missing_table_is_told_from_a_missing_function(store: DatabaseStore) -> None:
    with connections[alias_of(store)].cursor() as cursor:
        cursor.execute("ALTER TABLE django_locks_lease RENAME TO elsewhere")
        try:
            with pytest.raises(StoreUnavailable, match="manage.py migrate"):
                store.acquire("job", ME, 30, "me")
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO django_locks_lease")


def test_function_and_statement_go_on_from_each_other(store: DatabaseStore) -> None:
    without = DatabaseStore("default", alias_of(store))
    without._sql(connections[alias_of(store)])._has_functions = False  # type: ignore[attr-defined]
    fences = []
    for turn, one in enumerate([store, without, store, without]):
        fences.append(one.acquire("job", ME if turn % 2 else YOU, 30, "me"))
        expire(one, "job")
    assert fences == [fences[0] + step for step in range(4)]


def waits_for_disk(alias: str) -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        return bool(cursor.fetchone()[0] == "on")


@pytest.mark.parametrize("notify", [False, True])
def test_only_a_release_that_frees_the_name_is_written_later(notify: bool, connect: Connect) -> None:
    alias = connect("postgresql")
    store = DatabaseStore("default", alias, notify=notify)
    with connections[alias].cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
    store.acquire("job", ME, 30, "me")
    releases = {"not ours": (YOU, 0, False), "kept": (ME, 5, True), "ours": (ME, 0, True)}
    for kind, (owner, hold_for, done) in releases.items():
        if kind == "ours":
            expire(store, "job")
            store.acquire("job", ME, 30, "me")
        with transaction.atomic(alias):
            # What the store does on a connection in autocommit, looked at before the commit.
            connections[alias].atomic_blocks[0]._from_testcase = True
            assert store.release("job", owner, hold_for) is done
            assert waits_for_disk(alias) is (kind != "ours"), kind
        assert waits_for_disk(alias)


def test_server_that_crashes_after_a_release_has_every_grant(server: Server, connect: Connect) -> None:
    """The release may be lost; no grant is, nor a fence."""
    alias = connect("postgresql", "locks_crash", **{key: server.settings[key] for key in ("HOST", "PORT", "USER")})
    writer = next(one for one in psutil.Process(server.pid).children() if "walwriter" in " ".join(one.cmdline()))
    writer.suspend()  # who would write the release sooner or later
    store = DatabaseStore("default", alias)
    fences = {}
    for name in ("first", "second"):
        store.acquire(name, ME, 1, "me")
        store.release(name, ME)
        fences[name] = store.acquire(name, YOU, 1, "you") if name == "first" else None
    before = row(store, "second").fence
    server.kill()
    server.start()
    connections[alias].close()
    assert row(store, "first").owner == YOU
    assert row(store, "first").fence == fences["first"]
    assert row(store, "second").fence == before
    assert row(store, "second").owner == ME, "this server has waited for the disk: the test shows nothing"
    time.sleep(1.1)
    after = store.acquire("second", YOU, 30, "you")
    assert after is not None
    assert after > before


@pytest.fixture
def server() -> Iterator[Server]:
    """A PostgreSQL server of its own that writes to the disk, to be crashed."""
    yield from started(databases.postgres(fsync=True))
