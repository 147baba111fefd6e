"""K22: the lease is read from another database than it is written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_locks import locks


class Router:
    """Reads from a replica which, as it lags, knows nothing; writes to the primary."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model._meta.app_label == "django_locks" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "primary" if model._meta.app_label == "django_locks" else None


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def replica(request: pytest.FixtureRequest, connect: Any, settings: Any, tmp_path: Path) -> Any:
    connect(request.param, "primary")
    connect("sqlite", "replica", NAME=str(tmp_path / "replica.sqlite3"))
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore", "LOCATION": "primary"}}
    settings.DATABASE_ROUTERS = ["tests.scenarios.test_k22_replicas.Router"]
    return connections["replica"]


@pytest.mark.django_db
def test_every_question_about_a_lease_goes_to_the_primary(replica: Any, name: str, admin_client: Any) -> None:
    """B090"""
    with CaptureQueriesContext(replica) as queries:
        with locks.lock(name) as guard:
            assert locks.try_acquire(name) is None
            guard.extend()
            assert locks.get(name).owner == guard.owner
            assert [lease.name for lease in locks.leases(name)] == [name]
            listed = admin_client.get(reverse("admin:django_locks_lease_changelist")).content.decode()
            assert name in listed
        assert locks.get(name) is None
        assert locks.try_acquire(name).release() is True
    assert len(queries) == 0


def test_fresh_lease_is_seen_at_once_although_the_replica_lags(replica: Any, name: str) -> None:
    """B092"""
    with locks.lock(name, ttl=30) as guard:
        assert guard.lost is False
        assert guard.remaining > 28
        assert locks.get(name).remaining > 28
        assert locks.try_acquire(name) is None
