"""Fenced transactions at every isolation level."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, OperationalError, connections

from django_locks import LeaseLost, fencing, locks
from django_locks.models import Fence
from django_locks.stores.database import DatabaseStore
from django_locks.stores.memory import MemoryStore
from tests.notes import notes, write

LEVELS = {
    "postgresql": {"read committed": 2, "repeatable read": 3, "serializable": 4},  # psycopg.IsolationLevel
    "mariadb": {name: name for name in ("read committed", "repeatable read", "serializable")},
}


@pytest.fixture(
    params=[(kind, level) for kind, levels in LEVELS.items() for level in levels], ids=lambda param: " ".join(param)
)
def isolated(request: pytest.FixtureRequest, connect: Any, settings: Any) -> str:
    """Let leases and data be in one database at that isolation level."""
    kind, level = request.param
    options = {"isolation_level": LEVELS[kind][level], **({"charset": "utf8mb4"} if kind == "mariadb" else {})}
    alias: str = connect(kind, OPTIONS=options)
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore", "LOCATION": alias}}
    make_notes(alias)
    return alias


def make_notes(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS notes")
        cursor.execute("CREATE TABLE notes (text varchar(50))")
    Fence.objects.using(alias).all().delete()


def test_body_that_outlasts_a_renewal_commits(isolated):
    with locks.lock("x", ttl=1) as guard, guard.atomic():
        assert notes(isolated) == []  # the snapshot is taken
        before = guard.remaining
        time.sleep(0.2)
        while guard.remaining < before:  # until it is renewed
            before = min(before, guard.remaining)
            time.sleep(0.05)
        write(isolated, "a")
    assert notes(isolated) == ["a"]


def test_guard_commits_many_times_and_its_successor_too(isolated):
    for number in (1, 2):
        with locks.lock("x") as guard:
            for part in "ab":
                with guard.atomic():
                    write(isolated, f"{number}{part}")
    assert notes(isolated) == ["1a", "1b", "2a", "2b"]


def test_fence_row_of_an_earlier_holder_is_raised_at_every_level(isolated):
    guard = locks.acquire("x")
    Fence.raise_to(isolated, "x", guard.fence - 1)
    with guard.atomic():
        write(isolated, "a")
    assert Fence.objects.using(isolated).get().fence == guard.fence
    Fence.objects.using(isolated).update(fence=guard.fence + 1)
    with pytest.raises(LeaseLost), guard.atomic():
        pytest.fail("entered")


def test_conflict_that_is_not_about_the_lease_is_no_loss(isolated):
    from django_locks.fencing import _conflict_is_loss
    from tests.stores.databases import conflict

    guard = locks.acquire("x")
    with pytest.raises(DatabaseError, match="serialize"), _conflict_is_loss(guard):
        conflict("40001")()
    guard.check()
    locks.force_release("x")
    with pytest.raises(LeaseLost), _conflict_is_loss(guard):
        conflict("40001")()


def test_lost_holder_does_not_commit_although_nobody_has_come(isolated):
    with pytest.raises(LeaseLost), locks.lock("x") as guard, guard.atomic():
        write(isolated, "a")
        guard.expire()  # as when the store could not be asked in time
    assert notes(isolated) == []


def test_fence_row_that_was_deleted_is_made_anew(isolated):
    with locks.lock("x") as guard:
        with guard.atomic():
            write(isolated, "a")
        Fence.objects.using(isolated).all().delete()
        with guard.atomic():
            write(isolated, "b")
    assert notes(isolated) == ["a", "b"]


@pytest.fixture
def elsewhere(isolated, settings, monkeypatch):
    """Let the leases be in memory, and the fences of their data in that database."""
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.memory.MemoryStore", "LOCATION": uuid4().hex}}
    monkeypatch.setattr(MemoryStore, "database_alias", isolated)
    return isolated


def test_old_fences_are_forgotten_and_made_again(elsewhere):
    with locks.lock("x") as guard:
        with guard.atomic(using=elsewhere):
            write(elsewhere, "a")
        assert fencing.forget(guard.store, 3600) == 0
        assert fencing.forget(guard.store, -60, dry_run=True) == fencing.forget(guard.store, -60) == 1
        assert not Fence.objects.using(elsewhere).exists()
        with guard.atomic(using=elsewhere):
            write(elsewhere, "b")
        assert Fence.objects.using(elsewhere).get().fence == guard.fence
    assert notes(elsewhere) == ["a", "b"]


def test_fence_that_is_forgotten_meanwhile_rolls_its_holder_back(elsewhere):
    def forget():
        assert fencing.forget(guard.store, -60) == 1
        connections[elsewhere].close()

    with pytest.raises((LeaseLost, DatabaseError)), locks.lock("x") as guard, guard.atomic(using=elsewhere):
        write(elsewhere, "a")
        thread = threading.Thread(target=forget)
        thread.start()
        thread.join()
    assert notes(elsewhere) == []


def test_without_the_table_there_is_nothing_to_forget(isolated):
    store = DatabaseStore("default", isolated)
    with connections[isolated].cursor() as cursor:
        cursor.execute("ALTER TABLE django_locks_fence RENAME TO elsewhere")
        try:
            assert fencing.forget(store, 0) == 0
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO django_locks_fence")
    assert fencing.forget(DatabaseStore("default", "nowhere"), 0) == 0


def test_conflict_on_the_fence_is_tried_again_and_another_error_is_not(elsewhere, monkeypatch):
    errors, raise_to = [OperationalError("a conflict"), OperationalError("a conflict")], Fence.raise_to

    def fails_at_first(*args, **options):
        if errors:
            raise errors.pop()
        return raise_to(*args, **options)

    monkeypatch.setattr(Fence, "raise_to", fails_at_first)
    monkeypatch.setattr(fencing, "is_conflict", lambda error: "conflict" in str(error))
    with locks.lock("x") as guard, guard.atomic(using=elsewhere):
        write(elsewhere, "a")
    assert notes(elsewhere) == ["a"]
    errors.append(OperationalError("the disk is full"))
    with pytest.raises(OperationalError, match="disk"), locks.lock("x") as guard, guard.atomic(using=elsewhere):
        write(elsewhere, "b")
    assert notes(elsewhere) == ["a"]
