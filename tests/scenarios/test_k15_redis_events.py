"""K15: a Redis server that restarts empty. (Script caches and slots: tests/stores/test_redis_options.py.)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_locks import locks
from tests.scenarios.actors import eventually, store
from tests.servers import redis as servers
from tests.servers.fixtures_redis import started

BINARIES = {"redis": servers.redis_binary, "valkey": servers.valkey_binary}


@pytest.fixture(params=BINARIES)
def server(request: pytest.FixtureRequest, settings: Any) -> Iterator[servers.Server]:
    for server in started(servers.running(BINARIES[request.param]())):
        settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": server.url}}
        yield server


def test_calls_after_a_restart_succeed_at_once(server: servers.Server, name: str) -> None:
    """B059"""
    locks.acquire(name).release()
    server.restart()
    with locks.lock(name) as guard:
        guard.extend()
    assert locks.get(name) is None


@pytest.mark.usefixtures("server")
def test_holder_of_a_lease_that_the_server_has_forgotten_loses_it_and_never_makes_it_anew(
    server: servers.Server, name: str
) -> None:
    """B062"""
    a = locks.acquire(name, ttl=0.9)
    server.restart()
    b = locks.acquire(name, renew=False)
    eventually(lambda: a.lost, within=0.3 + 0.7)
    assert b.fence > a.fence
    assert a.release() is False
    b.release()
    time.sleep(0.4)  # more than a renewal interval
    assert locks.get(name) is None
    assert store().renew([(name, a.owner, 30)]) == set()
