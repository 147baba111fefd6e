"""Servers that tests pause, restart and cut off, and processes of their own that hold leases there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis as driver

from tests.conftest import DATABASE, REDIS
from tests.crew import Spec
from tests.servers import databases, redis
from tests.servers.aliases import empty, registered
from tests.servers.fixtures_redis import started
from tests.servers.proxy import Proxy

LONG = os.environ.get("LONG") == "1"


# Servers of this file's own, since they are paused and restarted


class Site:
    """A server, the settings that lead to it, and what only the server knows."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind, self.server = kind, server
        self.alias = f"faults_{kind}"

    @property
    def port(self) -> int:
        return int(self.server.port if self.kind == "redis" else self.server.settings["PORT"])

    def spec(self, port: int | None = None) -> Spec:
        port = port or self.port
        if self.kind == "redis":
            return Spec({"BACKEND": REDIS, "LOCATION": f"redis://127.0.0.1:{port}/0"})
        settings = {**self.server.settings, "PORT": str(port)}
        return Spec({"BACKEND": DATABASE, "LOCATION": self.alias}, {self.alias: settings})

    def sessions(self) -> int:
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres") as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            [count] = connection.execute(query).fetchone() or [0]
        return int(count)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[redis.Server]:
    lasting = ("--appendonly", "yes", "--appendfsync", "always")  # else a restart forgets all leases
    yield from started(contextmanager(lambda: _redis(*lasting))())


def _redis(*arguments: str) -> Iterator[redis.Server]:
    with redis.running(redis.redis_binary(), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def postgresql_server() -> Iterator[databases.Server]:
    yield from started(databases.postgres())


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[databases.Server]:
    yield from started(databases.mariadb())


@pytest.fixture
def site_of(request: pytest.FixtureRequest, settings: Any, django_db_blocker: Any) -> Iterator[Callable[..., Site]]:
    """Let ``locks`` of this process use the server of that kind."""
    with ExitStack() as stack:

        def site(kind: str) -> Site:
            site = Site(kind, request.getfixturevalue(f"{kind}_server"))
            if kind == "redis":
                driver.Redis(port=site.port).flushall()
            else:
                stack.enter_context(django_db_blocker.unblock())
                stack.enter_context(registered(site.alias, site.server.settings))
                empty(site.alias)
            settings.LOCKS = {"default": site.spec().locks}
            return site

        yield site


BOTH = pytest.mark.parametrize("kind", ["redis", "postgresql"])


SOME = BOTH if LONG else pytest.mark.parametrize("kind", ["redis"])


ALL = pytest.mark.parametrize("kind", ["redis", "postgresql", "mariadb"])


@contextmanager
def through(site: Site, network: Proxy, settings: Any) -> Iterator[None]:
    """Let ``locks`` of this process reach the server by the proxy."""
    spec = site.spec(network.port)
    with ExitStack() as stack:
        if site.kind != "redis":
            stack.enter_context(registered(f"{site.alias}_proxied", spec.databases[site.alias], migrate=False))
            spec.locks["LOCATION"] = f"{site.alias}_proxied"
        settings.LOCKS = {"default": spec.locks}
        yield


# How a process ends

PRELUDE = """
import atexit, json, os, signal, sys, threading, time
from tests.crew import Spec
Spec(*json.loads(os.environ["SPEC"])).apply()
from django_locks import locks, with_lock
def done():
    print("done", time.monotonic(), flush=True)
"""


class Script:
    """A Python process of its own, which has the settings."""

    def __init__(self, spec: Spec, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + source],
            env={**os.environ, "SPEC": json.dumps(spec), "PYTHONWARNINGS": "default"},
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        """Return the next line."""
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str, str, float]:
        """Return the exit status, what was printed, and the moment of the end."""
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err, time.monotonic()
