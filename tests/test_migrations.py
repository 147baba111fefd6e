"""Upgrades: what holds locks goes on holding them, from the first migration to the last, and on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_locks.stores.database import DatabaseStore
from tests.servers.fixtures_databases import Connect

ME, YOU = "a" * 32, "b" * 32
FIRST = ("django_locks", "0001_initial")
HELD, FREE, FENCED = 1_796_000_000_000_000, 1_796_000_000_000_007, 12


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty_database(request: pytest.FixtureRequest, connect: Connect, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield connect("sqlite", "upgraded", migrate=False, NAME=str(tmp_path / "db.sqlite3"))
        return
    with connections[connect(request.param, migrate=False)].cursor() as cursor:
        cursor.execute("CREATE DATABASE upgraded")
        yield connect(request.param, "upgraded", migrate=False, NAME="upgraded")
        connections["upgraded"].close()
        cursor.execute("DROP DATABASE upgraded")


def migrate(alias: str, target: tuple[str, str | None]) -> Any:
    """Migrate to there, forwards or backwards, and return the apps as they are then."""
    executor = MigrationExecutor(connections[alias])
    return executor.migrate([target]).apps


def rows(alias: str) -> tuple[set[Any], set[Any]]:
    """Return what must not change: of the leases and of the fences."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT name, owner, holder, fence, expires_at, outcome FROM django_locks_lease")
        leases = set(cursor.fetchall())
        cursor.execute("SELECT name, fence FROM django_locks_fence")
        return leases, set(cursor.fetchall())


def fill(apps: Any, alias: str) -> None:
    """Write what the first version would have: a lease that is held, one that is free, and a fence."""
    now = datetime.now(UTC)
    times = {"acquired_at": now, "expires_at": now + timedelta(hours=1)}
    leases = apps.get_model("django_locks", "Lease").objects.using(alias)
    leases.create(name="held", owner=ME, holder="web-1", fence=HELD, **times)
    leases.create(
        name="free", fence=FREE, acquired_at=now, expires_at=now, released_at=now, outcome="released", holder="web-2"
    )
    apps.get_model("django_locks", "Fence").objects.using(alias).create(name="held", fence=FENCED)


def test_leases_and_fences_survive_every_migration_and_the_way_back(empty_database):
    alias = empty_database
    fill(migrate(alias, FIRST), alias)
    before = rows(alias)
    every = sorted(name for app, name in MigrationExecutor(connections[alias]).loader.graph.nodes if app == FIRST[0])
    for name in every[1:]:
        migrate(alias, (FIRST[0], name))
        assert rows(alias) == before, name

    store = DatabaseStore("default", alias)
    held = store.get("held")
    assert held is not None
    assert (held.owner, held.fence) == (ME, HELD)
    assert store.acquire("held", YOU, 60, "web-3") is None
    assert store.renew([("held", ME, 7200)]) == {"held"}
    assert store.acquire("free", YOU, 7200, "web-3") == FREE + 1

    at_head = rows(alias)
    for name in reversed(every[:-1]):
        migrate(alias, (FIRST[0], name))
        assert rows(alias) == at_head, name
    migrate(alias, (FIRST[0], None))
    left = connections[alias].introspection.table_names()
    assert [table for table in left if table.startswith("django_locks")] == []
