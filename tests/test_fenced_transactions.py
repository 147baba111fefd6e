"""Transactions that only the holder commits, and queries that only the holder sends, on every store."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_locks import LeaseLost, locks
from tests.notes import SERVERS, Undo, notes, use, write


@pytest.fixture(params=SERVERS)
def alias(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> str:
    """Let ``locks`` use the database of that kind, and give it a table of the project's own."""
    return use(request.param, spec_of, settings)


# Fenced transactions


@pytest.fixture(params=["same", "redis", "memory"])
def fenced(request: pytest.FixtureRequest, alias: str, spec_of: Any, settings: Any) -> str:
    if request.param != "same":
        settings.LOCKS = {"default": spec_of(request.param).locks}
    return alias


def test_fenced_transaction_of_the_holder_commits(fenced):
    with locks.lock("x") as guard, guard.atomic(using=fenced):
        write(fenced, "a")
    assert notes(fenced) == ["a"]


def test_fenced_transaction_nests_in_itself_as_savepoints(fenced):
    with locks.lock("x") as guard, guard.atomic(using=fenced):
        with pytest.raises(Undo), guard.atomic(using=fenced):
            write(fenced, "undone")
            raise Undo
        with guard.atomic(using=fenced):
            write(fenced, "kept")
    assert notes(fenced) == ["kept"]


def test_fenced_transaction_inside_another_is_refused(fenced):
    with locks.lock("x") as guard, transaction.atomic(using=fenced):
        with pytest.raises(RuntimeError, match="durable"), guard.atomic(using=fenced):
            pytest.fail("entered")


def test_overtaken_holder_commits_nothing(fenced):
    with pytest.raises(LeaseLost), locks.lock("x") as guard:
        with guard.atomic(using=fenced):
            write(fenced, "late")
            locks.force_release("x")
    assert notes(fenced) == []
    assert guard.lost


def test_successor_commits_while_the_holder_is_inside(fenced):
    late = locks.acquire("x", renew=False)
    with pytest.raises(LeaseLost), late.atomic(using=fenced):
        write(fenced, "late")
        locks.force_release("x")
        commit_elsewhere(fenced)
    assert notes(fenced) == ["successor"]


def commit_elsewhere(alias: str) -> None:

    errors: list[BaseException] = []

    def run() -> None:
        try:
            with locks.lock("x") as guard, guard.atomic(using=alias):
                write(alias, "successor")
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert errors == []


def test_error_of_the_body_rolls_back_and_passes(fenced):
    with pytest.raises(Undo), locks.lock("x") as guard, guard.atomic(using=fenced):
        write(fenced, "a")
        raise Undo
    assert notes(fenced) == []


def test_fenced_transaction_on_sqlite_keeps_its_lease_while_it_lasts(spec_of, settings):
    alias = use("sqlite", spec_of, settings)
    import time

    with locks.lock("x", ttl=0.3) as guard:
        with guard.atomic():
            write(alias, "a")
            time.sleep(0.6)
            guard.check()
        guard.check()
        assert guard.remaining > 0
    assert notes(alias) == ["a"]


def test_fenced_transaction_without_autocommit_is_refused(fenced):
    connections[fenced].set_autocommit(False)
    try:
        with locks.lock("x") as guard, pytest.raises(TransactionManagementError), guard.atomic(using=fenced):
            pytest.fail("entered")
    finally:
        connections[fenced].rollback()
        connections[fenced].set_autocommit(True)


# Enforcement


def test_enforced_lease_stops_the_body_at_its_next_query(fenced):
    with pytest.raises(LeaseLost, match="'x'"), locks.lock("x") as guard:
        guard.enforce(using=fenced)
        write(fenced, "a")
        locks.force_release("x")
        with pytest.raises(LeaseLost):
            guard.extend()
        write(fenced, "b")
    assert notes(fenced) == ["a"]


def test_enforcement_ends_with_the_release(fenced):
    with locks.lock("x") as guard:
        guard.enforce(using=fenced)
    write(fenced, "a")
    assert notes(fenced) == ["a"]
    assert connections[fenced].execute_wrappers == []
