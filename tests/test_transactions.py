"""Leases and the caller's transactions."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.transaction import TransactionManagementError

from django_locks import AlreadyHeld, StoreUnavailable, conf, locks
from django_locks.transactions import after_transactions
from tests.notes import SERVERS, Undo, in_thread, is_held, notes, use, write
from tests.stores.databases import conflict, cut, wait_until


@pytest.fixture(params=SERVERS)
def alias(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> str:
    """Let ``locks`` use the database of that kind, and give it a table of the project's own."""
    return use(request.param, spec_of, settings)


def test_lease_taken_inside_a_transaction_is_seen_at_once(alias):
    with transaction.atomic(using=alias):
        write(alias, "first")
        guard = locks.try_acquire("x")
        assert is_held("x")
        assert guard.release() is True
        assert not is_held("x")


def test_rollback_of_the_caller_does_not_undo_the_lease(alias):
    with pytest.raises(Undo), transaction.atomic(using=alias):
        guard = locks.acquire("x")
        raise Undo
    assert is_held("x")
    assert guard.release() is True


def test_refusal_inside_a_transaction_does_not_break_it(alias):
    holder = locks.acquire("x")
    with transaction.atomic(using=alias):
        write(alias, "before")
        assert locks.try_acquire("x") is None
        with pytest.raises(AlreadyHeld):
            locks.acquire("x")
        write(alias, "after")
    assert notes(alias) == ["after", "before"]
    holder.release()


def test_failure_inside_a_transaction_does_not_break_it(alias):
    with transaction.atomic(using=alias):
        write(alias, "before")
        with connections[alias].execute_wrapper(lambda *args: pytest.fail("the caller's own connection was used")):
            guard = locks.try_acquire("x")
        with connections[alias].cursor() as cursor:
            cursor.execute("SAVEPOINT own")
        store = conf.entries("default").store
        with pytest.raises(StoreUnavailable):
            store.acquire("y", "owner", 1e300, "too long for the column")
        write(alias, "after")
        guard.release()
    assert notes(alias) == ["after", "before"]


def test_block_left_inside_a_transaction_is_released_by_its_commit(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x") as guard:
            write(alias, "a")
        assert is_held("x")
        assert not guard.released
        transaction.on_commit(lambda: seen.append(is_held("x")), using=alias)
        seen: list[bool] = []
    assert seen == [False]
    assert guard.released
    assert not is_held("x")


def test_block_left_inside_a_transaction_is_released_by_its_rollback(alias):
    with pytest.raises(Undo), transaction.atomic(using=alias):
        with locks.lock("x") as guard:
            write(alias, "a")
        assert is_held("x")
        raise Undo
    assert guard.released
    assert not is_held("x")


def test_block_left_inside_a_savepoint_waits_for_the_outermost_end(alias):
    with transaction.atomic(using=alias):
        with pytest.raises(Undo), transaction.atomic(using=alias):
            with locks.lock("x"):
                raise Undo
        assert is_held("x")
        with transaction.atomic(using=alias), locks.lock("y"):
            pass
        assert is_held("y")
    assert not is_held("x")
    assert not is_held("y")


def test_block_left_under_manual_transactions_is_released_by_commit_and_rollback(alias):
    connection = connections[alias]
    for end in (connection.commit, connection.rollback):
        connection.set_autocommit(False)
        try:
            with locks.lock("x"):
                write(alias, "a")
            assert is_held("x")
            end()
            assert not is_held("x")
        finally:
            connection.rollback()
            connection.set_autocommit(True)


def test_connection_closed_inside_a_transaction_releases(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x"):
            write(alias, "a")
        connections[alias].close()
        assert not is_held("x")
    assert notes(alias) == []


def test_transactions_on_two_databases_must_both_end(spec_of, settings):
    first, second = use("mariadb", spec_of, settings), use("postgresql", spec_of, settings)
    with transaction.atomic(using=first):
        with transaction.atomic(using=second), locks.lock("x"):
            pass
        assert is_held("x")
    assert not is_held("x")


def test_explicit_release_inside_a_transaction_is_at_once(alias):
    with transaction.atomic(using=alias), locks.lock("x") as guard:
        assert guard.release() is True
        assert not is_held("x")


def test_name_taken_again_in_the_same_transaction_is_the_same_lease(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x", ttl=20) as first:
            pass
        with locks.lock("x", ttl=40, wait=None) as second:
            assert second.fence == first.fence
            assert second.ttl == 40
            assert 39 < second.remaining <= 40
            second.check()
        assert is_held("x")
        assert locks.get("x").remaining > 30
    assert not is_held("x")
    assert second.released


def test_lock_taken_before_the_transaction_is_released_at_its_own_end(alias):
    with locks.lock("x") as guard:
        with transaction.atomic(using=alias):
            write(alias, "a")
        assert not guard.released
    assert not is_held("x")


def test_lease_taken_up_is_counted_by_the_new_terms_alone(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x", ttl=20, max_hold=5, at_least=60):
            pass
        with locks.lock("x", ttl=40) as again:
            assert 39 < again.remaining <= 40
            assert 39 < locks.get("x").remaining <= 40
    assert not is_held("x")


def test_try_acquire_takes_up_what_was_left(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x") as first:
            pass
        again = locks.try_acquire("x")
        assert again.fence == first.fence
        assert locks.try_acquire("x") is None
        assert again.release() is True  # at once, as asked
        assert not is_held("x")


def test_place_of_a_limited_lock_is_taken_up(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x", limit=3) as first:
            pass
        for _ in range(5):
            with locks.lock("x", limit=3) as again:
                assert again.name == first.name
    assert list(locks.leases()) == []


def test_lease_broken_while_it_waits_for_the_end_is_taken_anew(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x") as first:
            pass
        assert locks.force_release("x") is True
        with locks.lock("x") as again:
            assert again.fence > first.fence
        assert first.lost
    assert not is_held("x")


def test_other_thread_does_not_take_up_what_was_left(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x"):
            pass
        assert in_thread(lambda: locks.try_acquire("x")) is None


def test_left_lease_is_taken_up_although_others_wait_for_it(alias):
    with transaction.atomic(using=alias):
        with locks.lock("x") as first:
            pass
        waiter = threading.Thread(target=lambda: in_order.append(in_thread(take_and_release)))
        in_order: list[object] = []
        waiter.start()
        wait_until(lambda: "x" in conf.entries("default").store.waiters)
        with locks.lock("x", wait=5) as again:
            assert again.fence == first.fence
            in_order.append("own")
    waiter.join(20)
    assert in_order == ["own", "other"]


def take_and_release() -> str:
    with locks.lock("x", wait=20):
        return "other"


def test_several_locks_left_inside_a_transaction_are_released_by_its_end(alias):
    with pytest.raises(Undo), transaction.atomic(using=alias):
        with locks.lock_many(["x", "y"]):
            pass
        with locks.lock("outer"), locks.lock("inner"):
            pass
        assert [lease.name for lease in locks.leases()] == ["inner", "outer", "x", "y"]
        raise Undo
    assert list(locks.leases()) == []


def test_decorated_function_inside_a_transaction_is_released_by_its_end(alias):
    @locks.with_lock("x")
    def job() -> None:
        write(alias, "a")

    with transaction.atomic(using=alias):
        job()
        job()
        assert is_held("x")
    assert notes(alias) == ["a", "a"]
    assert not is_held("x")


def test_coroutine_run_inside_a_transaction_is_released_by_its_end(alias):
    async def job() -> int:
        async with locks.lock("x") as guard:
            await sync_to_async(write)(alias, "a")
            return guard.fence

    with transaction.atomic(using=alias):
        fence = async_to_sync(job)()
        assert is_held("x")
        assert async_to_sync(job)() == fence
        with locks.lock("x") as again:
            assert again.fence == fence
    assert not is_held("x")


def test_block_left_inside_atomic_without_a_savepoint_waits_too(alias):
    with transaction.atomic(using=alias):
        with transaction.atomic(using=alias, savepoint=False), locks.lock("x"):
            write(alias, "a")
        assert is_held("x")
    assert not is_held("x")


def test_callback_after_the_commit_may_take_the_lock(alias):
    fences = []
    with transaction.atomic(using=alias):
        with locks.lock("x") as guard:
            transaction.on_commit(lambda: fences.append(take_fence()), using=alias)
    assert fences[0] > guard.fence


def take_fence() -> int:
    with locks.lock("x") as guard:
        return guard.fence


def test_commit_that_fails_releases(alias):
    connection = connections[alias]
    commit = connection._commit
    with pytest.raises(DatabaseError), transaction.atomic(using=alias):
        with locks.lock("x"):
            write(alias, "a")
        commit = connection._commit
        connection._commit = conflict("40001")
    connection._commit = commit
    assert not is_held("x")
    assert notes(alias) == []


def test_session_that_dies_in_the_transaction_releases(alias, connect):
    other = connect(alias.removeprefix("locks_"), "locks_other")
    with pytest.raises((DatabaseError, InterfaceError)), transaction.atomic(using=alias):
        with locks.lock("x"):
            write(alias, "a")
        cut(conf.entries("default").store, other)
    connections[alias].close()
    assert not is_held("x")
    assert notes(alias) == []


def test_what_fails_at_the_end_is_no_failed_commit(alias, caplog):
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("a fault of a store")

    with transaction.atomic(using=alias):
        for name in ("x", "y"):
            with locks.lock(name) as guard:
                write(alias, "a")
        store = guard.store
        store.release = fail
    del store.release
    assert notes(alias) == ["a", "a"]
    assert caplog.text.count("end of a transaction failed") == 2
    guard.release()
    locks.force_release("x")


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_leases_elsewhere_wait_for_the_transaction_too(kind, spec_of, settings):
    alias = use("postgresql", spec_of, settings)
    settings.LOCKS = {"default": spec_of(kind).locks}
    with transaction.atomic(using=alias):
        with locks.lock("x"):
            write(alias, "a")
        assert locks.get("x") is not None
    assert locks.get("x") is None


def test_sqlite_file_inside_its_own_transaction_is_an_error_at_once(spec_of, settings):
    alias = use("sqlite", spec_of, settings)
    with transaction.atomic(using=alias):
        write(alias, "a")
        with pytest.raises(TransactionManagementError, match=r"before atomic\(\).*LOCATION"):
            locks.try_acquire("x")
        write(alias, "b")
    assert notes(alias) == ["a", "b"]


def test_sqlite_lock_taken_before_and_left_inside_is_released_at_the_end(spec_of, settings):
    alias = use("sqlite", spec_of, settings)
    for undo in (False, True):
        guard = locks.acquire("x")
        try:
            with transaction.atomic(using=alias):
                write(alias, "a")
                with guard:
                    pass
                assert not guard.released
                if undo:
                    raise Undo
        except Undo:
            pass
        assert guard.released
        assert locks.get("x") is None


def test_process_that_has_no_database_has_no_transaction(monkeypatch):
    monkeypatch.delitem(sys.modules, "django.db")
    assert after_transactions(pytest.fail) is False
