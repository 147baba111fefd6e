"""What is special to leases in a database; what every store must do is in `django_locks.testing`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext, modify_settings, override_settings

from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql import VENDORS, Statements, statements_for
from django_locks.stores.sql.generic import GenericStatements
from django_locks.stores.sql.sqlite import SQLiteStatements
from tests.servers.fixtures_databases import Connect

ME, YOU, THEM = "a" * 32, "b" * 32, "c" * 32

KINDS = ["sqlite", "postgresql", "mariadb"]
SERVERS = ["postgresql", "mariadb"]


class GenericStore(DatabaseStore):
    """As on a database that has no SQL of its own here."""

    def _sql(self, connection: Any) -> Statements:
        return GenericStatements(connection)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, connect: Connect) -> DatabaseStore:
    return DatabaseStore("default", connect(request.param))


@pytest.fixture(params=[*KINDS, "generic sqlite", "generic postgresql", "generic mariadb"])
def any_store(request: pytest.FixtureRequest, connect: Connect) -> DatabaseStore:
    *generic, kind = request.param.split()
    return (GenericStore if generic else DatabaseStore)("default", connect(kind))


def alias_of(store: DatabaseStore) -> str:
    return str(store.location)


def row(store: DatabaseStore, name: str) -> Any:
    from django_locks.models import Lease

    return Lease.objects.using(alias_of(store)).get(name=name)


def expire(store: DatabaseStore, name: str) -> None:
    from django_locks.models import Lease

    ended = datetime.now(UTC) - timedelta(days=2)  # the generic clock of MariaDB is local time
    Lease.objects.using(alias_of(store)).filter(name=name).update(expires_at=ended)


# One statement


def test_each_verb_is_one_statement(store: DatabaseStore) -> None:
    connection = connections[alias_of(store)]
    connection.ensure_connection()
    verbs: list[Callable[[], object]] = [
        lambda: store.acquire("job", ME, 30, "me"),
        lambda: store.acquire("job", YOU, 30, "you"),
        lambda: store.renew([("job", ME, 30)]),
        lambda: store.get("job"),
        lambda: store.release("job", ME),
        lambda: store.acquire("job", YOU, 30, "you"),
        lambda: store.acquire("other", YOU, 30, "you"),
        lambda: store.renew([("job", YOU, 30), ("other", YOU, 30)]),
    ]
    for verb in verbs:
        with CaptureQueriesContext(connection) as queries:
            assert verb() or verb is verbs[1]
        assert len(queries) == 1, [query["sql"] for query in queries]


def test_thousand_leases_are_renewed_by_one_statement(store: DatabaseStore) -> None:
    from django_locks.models import Lease

    now = datetime.now(UTC)
    end = now + timedelta(seconds=60)
    rows = [Lease(name=f"n{i}", owner=ME, fence=i, acquired_at=now, expires_at=end) for i in range(1000)]
    rows[7].owner, rows[8].expires_at = YOU, now - timedelta(seconds=1)
    Lease.objects.using(alias_of(store)).bulk_create(rows)
    with CaptureQueriesContext(connections[alias_of(store)]) as queries:
        renewed = store.renew([(f"n{i}", ME, 300) for i in range(1000)])
    assert renewed == {f"n{i}" for i in range(1000)} - {"n7", "n8"}
    assert len(queries) == (2 if connections[alias_of(store)].vendor == "mysql" else 1)
    assert row(store, "n9").expires_at > now + timedelta(seconds=290)
    assert row(store, "n7").expires_at == end


def test_renewals_of_different_ttl_each_get_their_own(any_store: DatabaseStore) -> None:
    for name in ("n0", "n1", "n2"):
        any_store.acquire(name, ME, 5, "me")
    claims = [("n0", ME, 10.0), ("n1", ME, 20.0), ("n2", ME, 20.0), ("gone", ME, 20.0)]
    assert any_store.renew(claims) == {"n0", "n1", "n2"}
    assert [round(lease.remaining) for lease in any_store.leases()] == [10, 20, 20]
    assert any_store.renew([]) == set()


# Ownership and time


def test_same_owner_asks_again_and_gets_the_same_fence(any_store: DatabaseStore) -> None:
    fence = any_store.acquire("job", ME, 5, "me")
    before = row(any_store, "job").acquired_at
    assert any_store.acquire("job", ME, 60, "me") == fence
    lease = any_store.get("job")
    assert lease is not None
    assert lease.remaining > 55
    assert lease.acquired_at == before


def test_same_owner_after_the_end_gets_a_new_grant(any_store: DatabaseStore) -> None:
    fence = any_store.acquire("job", ME, 5, "me")
    assert fence
    expire(any_store, "job")
    assert any_store.renew([("job", ME, 5)]) == set()
    assert any_store.release("job", ME) is False
    assert any_store.acquire("job", ME, 5, "me") == fence + 1


def test_grant_after_a_release_forgets_how_the_last_one_ended(any_store: DatabaseStore) -> None:
    any_store.acquire("job", ME, 5, "me")
    assert any_store.release("job", ME, outcome="failed")
    kept = row(any_store, "job")
    assert (kept.owner, kept.outcome, kept.holder) == ("", "failed", "me")
    assert kept.released_at >= kept.acquired_at
    any_store.acquire("job", YOU, 5, "you")
    taken = row(any_store, "job")
    assert (taken.owner, taken.outcome, taken.holder, taken.released_at) == (YOU, "", "you", None)


def test_name_kept_taken_is_freed_without_an_owner(any_store: DatabaseStore) -> None:
    any_store.acquire("job", ME, 5, "me")
    assert any_store.release("job", ME, hold_for=60)
    assert any_store.acquire("job", YOU, 5, "you") is None
    kept = any_store.get("job")
    assert kept is not None
    assert (kept.owner, 59 < kept.remaining <= 60) == ("", True)
    assert any_store.release("job", kept.owner, outcome="broken")
    assert any_store.acquire("job", YOU, 5, "you")


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_time_zones_do_not_move_the_end(kind: str, use_tz: bool, connect: Connect) -> None:
    zones = {"postgresql": "SET TIME ZONE 'Asia/Kolkata'", "mariadb": "SET time_zone = '-09:30'"}
    with override_settings(USE_TZ=use_tz, TIME_ZONE="America/New_York"):
        here = DatabaseStore("default", connect(kind))
        there = DatabaseStore("default", connect(kind, "locks_there"))
        if kind in zones:
            with connections[alias_of(there)].cursor() as cursor:
                cursor.execute(zones[kind])
        here.acquire("job", ME, 20, "me")
        assert there.acquire("job", YOU, 20, "you") is None
        lease = there.get("job")
        assert lease is not None
        assert 19 < lease.remaining <= 20
        assert abs(lease.expires_at - datetime.now(UTC) - timedelta(seconds=20)) < timedelta(seconds=2)
        assert row(there, "job").expires_at == lease.expires_at


def test_sqlite_clock_is_exact_at_every_millisecond(connect: Connect) -> None:
    sql = SQLiteStatements.now.replace("'now'", "%(at)s")
    with connections[connect("sqlite")].cursor() as cursor:
        for millisecond in range(1000):
            cursor.execute(f"SELECT {sql}", {"at": f"2026-03-29 01:59:59.{millisecond:03}"})
            assert cursor.fetchone() == (1774749599000000 + millisecond * 1000,)


@pytest.mark.parametrize("kind", KINDS)
def test_lease_ends_at_its_end_and_not_before(kind: str, connect: Connect) -> None:
    store = DatabaseStore("default", connect(kind))
    start, ttl = 1_774_749_599_123_000, 0.0405
    at(store, start)
    assert store.acquire("job", ME, ttl, "me") == start
    # SQLite's clock is cut to milliseconds: what it shows may be over by almost another one.
    last, over = (41_000, 42_000) if kind == "sqlite" else (40_499, 40_500)
    at(store, start + last)
    assert store.acquire("job", YOU, ttl, "you") is None
    assert store.get("job")
    assert store.prune(0) == 0
    at(store, start + over)
    assert store.get("job") is None
    assert list(store.leases()) == []
    assert store.renew([("job", ME, ttl)]) == set()
    assert store.renew([("job", ME, ttl), ("other", ME, ttl)]) == set()
    assert store.release("job", ME) is False
    assert store.acquire("job", YOU, ttl, "you") == start + 1
    assert store.release("job", YOU)
    assert store.acquire("job", ME, ttl, "me") == start + 2


@pytest.mark.parametrize("kind", KINDS)
def test_short_leases_never_overlap(kind: str, connect: Connect) -> None:
    store, ttl = DatabaseStore("default", connect(kind)), 0.0405
    grants: list[tuple[int, float, float]] = []
    stop = time.monotonic() + 1.2

    def crash_again_and_again(owner: str) -> None:
        while (asked := time.monotonic()) < stop:
            fence = store.acquire("job", owner, ttl, "")
            if fence:
                grants.append((fence, time.monotonic(), asked + ttl))
                owner = f"{int(owner, 16) + 16:032x}"

    in_threads(store, crash_again_and_again, [f"{n:032x}" for n in range(4)])
    grants.sort()
    assert len(grants) > 5
    assert len({fence for fence, _, _ in grants}) == len(grants)
    for (_, _, end), (_, start, _) in pairwise(grants):
        assert end <= start


def test_end_counts_from_the_write_on_postgresql(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    store.acquire("job", ME, 1, "me")
    expire(store, "job")
    with transaction.atomic(alias_of(store)):
        with connections[alias_of(store)].cursor() as cursor:
            cursor.execute("SELECT * FROM django_locks_lease FOR UPDATE")
        fences: list[int | None] = []
        waiter = threading.Thread(target=lambda: (fences.append(store.acquire("job", YOU, 1, "you")), close(store)))
        waiter.start()
        wait_until(lambda: waits_for_a_lock(connections[alias_of(store)]))
        time.sleep(0.4)
    waiter.join()
    lease = store.get("job")
    assert lease is not None
    assert fences == [lease.fence]
    assert lease.remaining > 0.7


# Names


def test_names_compare_byte_by_byte(any_store: DatabaseStore) -> None:
    names = [
        "job",
        "JOB",
        "jöb",
        "job.",
        "jo b",
        "ß",
        "ss",
        "i",
        "İ",
        "ı",
        "Ω",
        "🔒",
        "🔓",
        "a%",
        "a_",
        "ab",
        "a'\"\\`{}:x%s",
    ]
    assert all(any_store.acquire(name, ME, 30, "🔒 mé") for name in names)
    assert [lease.name for lease in any_store.leases()] == sorted(names)
    assert any_store.renew([(name, ME, 30) for name in names]) == set(names)
    assert all(any_store.release(name, ME) for name in names)
    assert any_store.acquire("N" * 255, ME, 30, "me")


def test_prefix_is_text_and_pages_follow_each_other(any_store: DatabaseStore) -> None:
    any_store.batch = 2
    for name in ["a%1", "a%2", "a%3", "a%4", "a_1", "ab1", "A%1", "a", "b"]:
        any_store.acquire(name, ME, 30, "me")
    any_store.release("a%2", ME)
    assert [lease.name for lease in any_store.leases("a%")] == ["a%1", "a%3", "a%4"]
    assert [lease.name for lease in any_store.leases("a_")] == ["a_1"]
    assert [lease.name for lease in any_store.leases("a ")] == []
    assert len(list(any_store.leases())) == 8


# A refusal


def test_refusal_is_read_only_on_postgresql(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    store.acquire("job", ME, 30, "me")
    before = hidden_columns(store)
    assert store.acquire("job", YOU, 30, "you") is None
    assert hidden_columns(store) == before


@pytest.mark.parametrize("found_rows", [True, False])
def test_mysql_answers_do_not_hang_on_found_rows(found_rows: bool, connect: Connect) -> None:
    options = {} if found_rows else {"OPTIONS": {"charset": "utf8mb4", "client_flag": 0}}
    store = DatabaseStore("default", connect("mariadb", **options))
    fence = store.acquire("job", ME, 30, "me")
    assert fence
    before = row(store, "job").__dict__
    assert store.acquire("job", YOU, 30, "you") is None
    assert {**row(store, "job").__dict__, "_state": None} == {**before, "_state": None}
    assert store.acquire("job", ME, 30, "me") == fence
    assert store.renew([("job", ME, 30)]) == {"job"}
    assert store.renew([("job", YOU, 30)]) == set()
    assert store.release("job", YOU) is False
    assert store.release("job", ME) is True
    assert store.acquire("job", YOU, 30, "you") == fence + 1


def test_mysql_assignments_may_happen_at_once(connect: Connect) -> None:
    store = DatabaseStore("default", connect("mariadb"))
    with connections[alias_of(store)].cursor() as cursor:
        cursor.execute("SET sql_mode = CONCAT(@@sql_mode, ',SIMULTANEOUS_ASSIGNMENT')")
    fence = store.acquire("job", ME, 30, "me")
    assert fence
    assert store.acquire("job", YOU, 30, "you") is None
    assert store.release("job", ME)
    assert store.acquire("job", YOU, 30, "you") == fence + 1
    assert row(store, "job").holder == "you"
    assert store.release("job", YOU)


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("kind", SERVERS)
def test_isolation_levels_never_show(kind: str, level: str, connect: Connect) -> None:
    levels = {"read committed": 2, "repeatable read": 3, "serializable": 4}  # as psycopg counts them
    options = {"isolation_level": levels[level] if kind == "postgresql" else level}
    store = DatabaseStore("default", connect(kind, OPTIONS=options))
    inside, overlaps, grants = set[str](), list[str](), list[int]()
    stop = time.monotonic() + 0.8

    def contend(owner: str) -> None:
        while time.monotonic() < stop:
            if fence := store.acquire("job", owner, 30, ""):
                overlaps.extend(inside)
                inside.add(owner)
                grants.append(fence)
                inside.remove(owner)
                assert store.renew([("job", owner, 30)])
                assert store.release("job", owner)

    in_threads(store, contend, [f"{n:032x}" for n in range(6)])
    assert not overlaps
    assert len(grants) > 10
    assert grants == sorted(set(grants))


def test_server_side_binding(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql", OPTIONS={"server_side_binding": True}))
    fence = store.acquire("job", ME, 30, "me")
    assert fence
    assert store.acquire("job", YOU, 30, "you") is None
    assert store.acquire("other", ME, 2.5, "me")
    assert store.renew([("job", ME, 30)]) == {"job"}
    assert store.renew([("job", ME, 30), ("other", ME, 1)]) == {"job", "other"}
    assert [lease.name for lease in store.leases("j")] == ["job"]
    assert store.release("job", ME, hold_for=1)
    assert store.release("other", ME)
    time.sleep(0.01)
    assert store.prune(0.001) == 1


# Faults


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


VERBS: dict[str, Callable[[DatabaseStore], object]] = {
    "acquire": lambda store: store.acquire("new", ME, 30, "me"),
    "renew": lambda store: store.renew([("job", ME, 30)]),
    "renew many": lambda store: store.renew([("job", ME, 30), ("other", ME, 30)]),
    "release": lambda store: store.release("job", ME),
    "get": lambda store: store.get("job"),
    "leases": lambda store: list(store.leases()),
    "prune": lambda store: store.prune(60),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", SERVERS)
def test_dead_connection_goes_unnoticed(kind: str, verb: str, connect: Connect) -> None:
    store = DatabaseStore("default", connect(kind))
    store.acquire("job", ME, 30, "me")
    store.acquire("old", ME, 30, "me")
    expire(store, "old")
    cut(store, connect(kind, "locks_other"))
    assert VERBS[verb](store)


def test_dead_connection_in_a_transaction_is_its_owner_s(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    other = connect("postgresql", "locks_other")
    connection = connections[alias_of(store)]
    with suppress(OperationalError, InterfaceError), transaction.atomic(alias_of(store)):
        session = connection.connection
        cut(store, other)
        with pytest.raises(StoreUnavailable):
            store.acquire("job", ME, 30, "me")
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
    monkeypatch.setattr("django_locks.clock.now", lambda: next(times))
    with faulty(store, before=conflict("busy")) as tries, pytest.raises(StoreUnavailable):
        store.acquire("job", ME, 30, "me")
    assert len(tries) == 1


def test_release_refused_after_a_conflict_is_refused(connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    with faulty(store, before=conflict("40001")):
        assert store.release("job", ME) is False


def test_conflict_in_a_transaction_is_its_owner_s(connect: Connect) -> None:
    store = DatabaseStore("default", connect("sqlite"))
    with transaction.atomic(alias_of(store)), faulty(store, before=conflict("40001")) as tries:
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


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("statement", ["INSERT", "UPDATE"])
def test_somebody_was_faster_than_the_generic_statements(statement: str, kind: str, connect: Connect) -> None:
    store, other = GenericStore("default", connect(kind)), GenericStore("default", connect(kind, "locks_other"))
    if statement == "UPDATE":
        store.acquire("job", THEM, 30, "them")
        expire(store, "job")
    with faulty(store, before=lambda: other.acquire("job", YOU, 30, "you"), only=statement) as tries:
        assert store.acquire("job", ME, 30, "me") is None
    assert len(tries) == 1
    assert row(store, "job").owner == YOU


def test_generic_insert_refused_for_another_reason_is_unavailable(connect: Connect) -> None:
    store = GenericStore("default", connect("sqlite"))

    def fail() -> None:
        raise IntegrityError("NOT NULL constraint failed")

    with faulty(store, before=fail, only="INSERT"), pytest.raises(StoreUnavailable, match="NOT NULL"):
        store.acquire("job", ME, 30, "me")
    assert store.acquire("job", ME, 30, "me")


def test_unknown_vendor_and_old_sqlite_get_the_generic_statements(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections[connect("sqlite")]
    assert type(statements_for(connection)) is SQLiteStatements
    monkeypatch.setattr(connection.features, "can_return_columns_from_insert", False)
    assert type(statements_for(connection)) is GenericStatements
    monkeypatch.setattr(connection, "vendor", "oracle")
    assert type(statements_for(connection)) is GenericStatements


# Pruning and routing


def test_prune_is_bounded_and_spares_the_living(any_store: DatabaseStore) -> None:
    from django_locks.models import Lease

    any_store.batch = 100
    old = datetime.now(UTC) - timedelta(days=9)
    rows = [Lease(name=f"n{i:03}", fence=1, acquired_at=old, expires_at=old) for i in range(250)]
    Lease.objects.using(alias_of(any_store)).bulk_create(rows)
    any_store.acquire("held", ME, 30, "me")
    any_store.acquire("kept", ME, 30, "me")
    any_store.release("kept", ME, hold_for=30)
    any_store.acquire("fresh", ME, 30, "me")
    any_store.release("fresh", ME)
    with CaptureQueriesContext(connections[alias_of(any_store)]) as queries:
        assert any_store.prune(24 * 3600) == 250
    assert sum("DELETE" in query["sql"] for query in queries) == 3
    assert set(Lease.objects.using(alias_of(any_store)).values_list("name", flat=True)) == {"held", "kept", "fresh"}
    assert any_store.prune(24 * 3600) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_fence_rises_over_a_prune_within_one_tick(kind: str, connect: Connect) -> None:
    store, start = DatabaseStore("default", connect(kind)), 1_774_749_599_123_000
    at(store, start)
    for fence in (start, start + 1):
        assert store.acquire("job", ME, 30, "me") == fence
        assert store.release("job", ME)
    assert store.prune(0) == 0
    at(store, start + 1000)
    assert store.prune(0) == 1
    assert store.acquire("job", ME, 30, "me") == start + 1000


def test_lease_taken_between_the_two_statements_of_prune_stays(any_store: DatabaseStore) -> None:
    any_store.acquire("job", ME, 30, "me")
    assert any_store._forget(["job"], 0.001) == 0
    assert any_store.get("job")


class ForbiddenRouter:
    """Stands for one that sends reads to a replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        raise AssertionError("a router was asked")

    db_for_write = db_for_read


def test_no_router_is_asked(any_store: DatabaseStore) -> None:
    any_store.acquire("job", ME, 30, "me")
    any_store.acquire("old", ME, 30, "me")
    expire(any_store, "old")
    with override_settings(DATABASE_ROUTERS=["tests.stores.test_database.ForbiddenRouter"]):
        for verb in VERBS.values():
            verb(any_store)


# Helpers


def at(store: DatabaseStore, now: int) -> None:
    """Stop the database's clock, for this store, at so many microseconds since the epoch."""
    connection = connections[alias_of(store)]
    stopped = type("Stopped", (VENDORS[connection.vendor],), {"now": str(now)})
    store._statements[connection.vendor] = stopped(connection)


def hidden_columns(store: DatabaseStore) -> Any:
    with connections[alias_of(store)].cursor() as cursor:
        cursor.execute("SELECT xmin, xmax, ctid FROM django_locks_lease")
        return cursor.fetchall()


def waits_for_a_lock(connection: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def cut(store: DatabaseStore, other: str) -> None:
    """End the store's session from another one, as a restart or an idle time-out does."""
    mysql = connections[other].vendor == "mysql"
    with connections[alias_of(store)].cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()" if mysql else "SELECT pg_backend_pid()")
        session = cursor.fetchone()[0]
    with connections[other].cursor() as cursor:
        cursor.execute(f"KILL {session}" if mysql else f"SELECT pg_terminate_backend({session}, 5000)")


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


def close(store: DatabaseStore) -> None:
    connections[alias_of(store)].close()


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
