"""Entries of DATABASES that come and go with a test, outside pytest-django's own test databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management import call_command
from django.db import connections

_migrated: set[tuple[object, ...]] = set()


@contextmanager
def registered(alias: str, settings: dict[str, Any], *, migrate: bool = True) -> Iterator[str]:
    """Give the database an alias in `django.db.connections`; with our tables unless ``migrate`` is off."""
    defaults = {"TEST": {}, **settings}
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: defaults})[alias]
    try:
        if migrate:
            _migrate_once(alias)
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


def empty(alias: str) -> None:
    """Forget all leases there, and their history."""
    with connections[alias].cursor() as cursor:
        for table in ("lease", "run", "skips"):
            cursor.execute(f"DELETE FROM django_locks_{table}")


def _migrate_once(alias: str) -> None:
    settings = connections.settings[alias]
    database = (settings["ENGINE"], settings["NAME"], settings["HOST"], settings["PORT"])
    if database not in _migrated:
        call_command("migrate", database=alias, verbosity=0)
        _migrated.add(database)
