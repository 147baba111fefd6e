"""Servers of the benchmark's own, and Django's settings for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.servers import ServerMissing, databases
from tests.servers import redis as redis_servers

MEMORY = "django_locks.stores.memory.MemoryStore"
REDIS = "django_locks.stores.redis.RedisStore"
DATABASE = "django_locks.stores.database.DatabaseStore"

STARTERS = {
    "postgres": lambda: databases.postgres(fsync=True),
    "mariadb": lambda: databases.mariadb(fsync=True),
    "redis": redis_servers.redis,
    "sqlite": lambda: tempfile.TemporaryDirectory(prefix="locks-bench-"),
}


class World:
    """What runs: the addresses of the servers, and why others do not."""

    def __init__(self) -> None:
        self.redis_url = ""
        self.databases: dict[str, dict[str, Any]] = {}
        self.locks: dict[str, dict[str, Any]] = {
            "default": {"BACKEND": MEMORY},
            **{f"memory_{size}": {"BACKEND": MEMORY, "LOCATION": size} for size in ("small", "large")},
        }
        self.notes: list[str] = []

    def has(self, *kinds: str) -> bool:
        return all(kind in self.locks for kind in kinds)

    def settings(self) -> dict[str, Any]:
        """Return the settings, for this process and for those that it starts."""
        default = self.databases.get("postgres") or {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        caches = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": self.redis_url}}
        return {
            "INSTALLED_APPS": ["django_locks", *_peers()],
            "DATABASES": {"default": default, **self.databases},
            "CACHES": caches if self.redis_url else {},
            "LOCKS": self.locks,
            "USE_TZ": True,
            "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        }

    def _add(self, kind: str, started: Any) -> None:
        if kind == "redis":
            self.redis_url = started
            self.locks["redis"] = {"BACKEND": REDIS, "LOCATION": started}
            self.locks["renewal"] = {"BACKEND": REDIS, "LOCATION": started, "TTL": 3}
            for number, size in enumerate(("small", "large"), 1):
                self.locks[f"redis_{size}"] = {"BACKEND": REDIS, "LOCATION": f"{started.rstrip('/')}/{number}"}
            return
        for size in ("", "_small", "_large"):
            self.databases[f"{kind}{size}"] = _database(kind, started, size)
            self.locks[f"{kind}{size}"] = {"BACKEND": DATABASE, "LOCATION": f"{kind}{size}"}
        if kind == "postgres":
            # For hand-offs, which are two commits: without their flushes, it is the waking that is seen.
            unflushed = {"options": "-c synchronous_commit=off"}
            self.databases["handoff"] = {**self.databases[kind], "OPTIONS": unflushed}
            self.locks["polling"] = {"BACKEND": DATABASE, "LOCATION": "handoff"}
            self.locks["notify"] = {**self.locks["polling"], "OPTIONS": {"notify": True}}


def _database(kind: str, started: Any, size: str) -> dict[str, Any]:
    if kind == "sqlite":
        options = {"init_command": "PRAGMA journal_mode=WAL", "transaction_mode": "IMMEDIATE"}
        name = os.path.join(started, f"locks{size}.sqlite3")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}
    settings: dict[str, Any] = started.settings
    return {**settings, "NAME": settings["NAME"] + size, "CONN_MAX_AGE": None}


def _peers() -> list[str]:
    import importlib.util

    apps = ("db_mutex", "pgactivity", "pglock")
    return [app for app in apps if importlib.util.find_spec(app)]


@contextmanager
def running(kinds: set[str]) -> Iterator[World]:
    """Start the servers, all at once, make their tables, and set up Django."""
    world = World()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        managers = {kind: STARTERS[kind]() for kind in STARTERS if kind in kinds}
        started = {kind: pool.submit(manager.__enter__) for kind, manager in managers.items()}
        for kind, future in started.items():
            try:
                world._add(kind, future.result())
            except ServerMissing as missing:
                world.notes.append(f"{kind} is left out: {missing}")
            else:
                stack.callback(managers[kind].__exit__, None, None, None)
        configure(world.settings())
        make_tables(world)
        yield world


def configure(settings: dict[str, Any]) -> None:
    """Set up Django in this process."""
    import django
    from django.conf import settings as django_settings

    databases.use_pymysql()
    django_settings.configure(**settings)
    django.setup()


def make_tables(world: World) -> None:
    """Make databases of all sizes, and their tables."""
    from django.core.management import call_command
    from django.db import connections

    for alias in world.databases:
        kind, _, size = alias.partition("_")
        if size and kind in ("postgres", "mariadb"):
            with connections[kind].cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {world.databases[alias]['NAME']}")
        app = () if alias == "postgres" else ("django_locks",)
        call_command("migrate", *app, database=alias, verbosity=0)
