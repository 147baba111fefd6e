"""K29: fences rise at each grant, survive cleanup and restart, and are checked."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from django_locks import locks
from tests.crew import Spec
from tests.scenarios.actors import eventually, store
from tests.servers import redis as servers
from tests.servers.fixtures_redis import started


@pytest.mark.usefixtures("any_store")
def test_fence_is_a_new_one_at_each_grant_and_kept_by_renewals(name: str) -> None:
    """B115"""
    fences = []
    for _ in range(2):  # lapses
        guard = locks.acquire(name, ttl=0.15, renew=False)
        fences.append(guard.fence)
        eventually(lambda: locks.get(name) is None)
        assert guard.lost
    for _ in range(3):  # gives it back; whoever comes next
        guard = locks.acquire(name, ttl=20)
        for _ in range(10):
            guard.extend()
        assert locks.get(name).fence == guard.fence
        fences.append(guard.fence)
        guard.release()
    assert fences == sorted(set(fences))
    assert all(type(fence) is int and 0 < fence < 2**53 for fence in fences)


class Resource:
    """Takes a write only with the highest fence that it has seen."""

    def __init__(self) -> None:
        self.highest, self.value = 0, ""

    def write(self, fence: int, value: str) -> bool:
        if fence < self.highest:
            return False
        self.highest, self.value = fence, value
        return True


def pruned(name: str, spec: Spec) -> None:
    eventually(lambda: locks.get(name) is None)
    time.sleep(0.005)
    store().prune(0)


def broken(name: str, spec: Spec) -> None:
    locks.force_release(name)
    pruned(name, spec)


def wiped(name: str, spec: Spec) -> None:
    """Delete all that the store has."""
    if "MemoryStore" in spec.locks["BACKEND"]:
        store()._table.leases.clear()  # type: ignore[attr-defined]
    elif "DatabaseStore" in spec.locks["BACKEND"]:
        from django_locks.models import Lease

        Lease.objects.using(spec.locks["LOCATION"]).all().delete()
        time.sleep(0.002)  # SQLite's clock, from which a forgotten fence begins anew, goes by milliseconds
    else:
        location = spec.locks["LOCATION"]
        for url in location if isinstance(location, list) else [location]:
            with redis.Redis.from_url(url) as client:
                client.flushall()


@pytest.mark.parametrize("end", [pruned, broken, wiped])
def test_stalled_holder_that_wakes_up_cannot_write_over_its_successor(any_store: Spec, end: Any, name: str) -> None:
    """B116"""
    resource = Resource()
    a = locks.acquire(name, ttl=0.2, renew=False)
    assert resource.write(a.fence, "a begins")
    end(name, any_store)
    with locks.lock(name) as b:
        assert resource.write(b.fence, "b")
        assert resource.write(a.fence, "a") is False
    assert resource.value == "b"
    a.release()


def test_fences_go_on_over_a_restart_with_persistence(settings: Any, name: str) -> None:
    """B116"""
    for server in started(servers.running(servers.valkey_binary(), "--appendonly", "yes", "--appendfsync", "always")):
        settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": server.url}}
        a = locks.acquire(name, ttl=20, renew=False)
        server.restart()
        assert locks.get(name).fence == a.fence
        assert locks.try_acquire(name) is None
        assert a.release() is True
        with locks.lock(name) as b:
            assert b.fence > a.fence
