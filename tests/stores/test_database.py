"""What is special to leases in a database; what every store must do is in `django_locks.testing`."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings

from django_locks.models import Lease
from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql import statements_for
from django_locks.stores.sql.generic import GenericStatements
from django_locks.stores.sql.sqlite import OldSQLiteStatements, SQLiteStatements
from tests.servers.fixtures_databases import Connect
from tests.stores.databases import (
    KINDS,
    ME,
    SERVERS,
    THEM,
    VERBS,
    YOU,
    GenericStore,
    alias_of,
    expire,
    faulty,
    in_threads,
    row,
    store_of,
)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, connect: Connect) -> DatabaseStore:
    return store_of(request.param, connect)


@pytest.fixture(params=[*KINDS, "old sqlite", "generic sqlite", "generic postgresql", "generic mariadb"])
def any_store(request: pytest.FixtureRequest, connect: Connect) -> DatabaseStore:
    return store_of(request.param, connect)


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


def test_late_renewal_was_faster_than_the_generic_takeover(connect: Connect) -> None:
    store = GenericStore("default", connect("sqlite"))
    store.acquire("job", YOU, 30, "you")
    expire(store, "job")
    later = datetime.now(UTC) + timedelta(seconds=30)

    def renew() -> None:
        Lease.objects.using(alias_of(store)).filter(name="job").update(expires_at=later)

    with faulty(store, before=renew, only="UPDATE"):
        assert store.acquire("job", ME, 30, "me") is None
    assert row(store, "job").owner == YOU


def test_row_is_locked_for_its_owner_alone(any_store: DatabaseStore) -> None:
    any_store.acquire("job", ME, 30, "me")
    alias = alias_of(any_store)
    with transaction.atomic(alias):
        assert any_store.lock_row(alias, ("job", YOU, 60)) is False
        assert any_store.lock_row(alias, ("other", ME, 60)) is False
        assert any_store.lock_row(alias, ("job", ME, 60)) is True
    lease = any_store.get("job")
    assert lease is not None
    assert (lease.remaining > 55) is (connections[alias].vendor == "sqlite" and not isinstance(any_store, GenericStore))


@pytest.mark.parametrize("kind", [*SERVERS, "generic postgresql", "generic mariadb"])
def test_locked_row_stays_as_it_is_until_the_transaction_ends(kind: str, connect: Connect) -> None:
    store, other = store_of(kind, connect), connect(kind.split()[-1], "locks_other")
    store.acquire("job", ME, 30, "me")
    rows = Lease.objects.using(other).select_for_update(nowait=True).filter(name="job")
    with transaction.atomic(alias_of(store)):
        assert store.lock_row(alias_of(store), ("job", ME, 30))
        with pytest.raises(OperationalError), transaction.atomic(other):
            list(rows)
    with transaction.atomic(other):
        assert len(rows) == 1


def test_unknown_vendor_and_old_sqlite_get_the_generic_statements(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections[connect("sqlite")]
    assert type(statements_for(connection)) is SQLiteStatements
    monkeypatch.setattr(connection.features, "can_return_columns_from_insert", False)
    assert type(statements_for(connection)) is OldSQLiteStatements
    monkeypatch.setattr(connection, "vendor", "oracle")
    assert type(statements_for(connection)) is GenericStatements


def test_prune_is_bounded_and_spares_the_living(any_store: DatabaseStore) -> None:
    any_store.batch = 100
    old = datetime.now(UTC) - timedelta(days=9)
    rows = [Lease(name=f"n{i:03}", fence=1, acquired_at=old, expires_at=old) for i in range(250)]
    Lease.objects.using(alias_of(any_store)).bulk_create(rows)
    any_store.acquire("held", ME, 30, "me")
    any_store.acquire("kept", ME, 30, "me")
    any_store.release("kept", ME, hold_for=30)
    any_store.acquire("fresh", ME, 30, "me")
    any_store.release("fresh", ME)
    assert any_store.count_free(24 * 3600) == 250
    with CaptureQueriesContext(connections[alias_of(any_store)]) as queries:
        assert any_store.prune(24 * 3600) == 250
    assert sum("DELETE" in query["sql"] for query in queries) == 3
    assert set(Lease.objects.using(alias_of(any_store)).values_list("name", flat=True)) == {
        "held",
        "kept",
        "fresh",
    }
    assert any_store.prune(24 * 3600) == 0


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


def hidden_columns(store: DatabaseStore) -> Any:
    with connections[alias_of(store)].cursor() as cursor:
        cursor.execute("SELECT xmin, xmax, ctid FROM django_locks_lease")
        return cursor.fetchall()
