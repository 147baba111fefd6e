"""Fixtures of the tests of ``manage.py locks``."""

from __future__ import annotations

import uuid

import pytest

from django_locks import locks
from tests.cli import environment, manage

MEMORY = "django_locks.stores.memory.MemoryStore"


@pytest.fixture
def two_stores(settings):
    """Two stores in memory, which no other test shares."""
    settings.LOCKS = {
        "default": {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, "HOLDER": "web-1"},
        "other": {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, "HOLDER": "web-2", "KEY_PREFIX": "stg"},
    }


@pytest.fixture
def held():
    """Take locks, and give them back after the test."""
    guards = []

    def take(name, service=locks, **terms):
        guards.append(service.acquire(name, **terms))
        return guards[-1]

    yield take
    for guard in guards:
        guard.release()


@pytest.fixture(scope="session")
def sqlite_env(tmp_path_factory):
    """The environment of a project on an SQLite file, migrated."""
    env = environment(DATABASE_URL=f"sqlite:///{tmp_path_factory.mktemp('command') / 'db.sqlite3'}")
    migrated = manage(env, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return env
