"""Grants that count only when replicas have them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_locks import InvalidLockStore, StoreUnavailable, locks
from django_locks.stores.redis import RedisStore
from tests.servers import redis as servers


@pytest.fixture(scope="module")
def primary() -> Iterator[Any]:
    with servers.running(servers.valkey_binary(), "--repl-diskless-sync-delay", "0") as server:
        yield server


@pytest.fixture
def replica(primary: Any) -> Iterator[Any]:
    with servers.running(servers.valkey_binary(), "--replicaof", f"127.0.0.1 {primary.port}") as server:
        client = redis.Redis.from_url(server.url)
        deadline = time.monotonic() + 20
        while client.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        client.close()
        yield server


def use(settings: Any, primary: Any, **options: Any) -> None:
    settings.LOCKS = {
        "default": {
            "BACKEND": "django_locks.stores.redis.RedisStore",
            "LOCATION": primary.url,
            "OPTIONS": {"wait_replicas": 1, "wait_timeout": 0.3, **options},
        }
    }


def both_sides() -> list[Any]:
    return [lambda: locks.try_acquire("x"), lambda: asyncio.run(locks.atry_acquire("x"))]


def test_confirmed_grant_counts_and_is_on_the_replica(settings, primary, replica):
    use(settings, primary, wait_timeout=1.9)
    for take in both_sides():
        guard = take()
        client = redis.Redis.from_url(replica.url)
        assert [key for key in client.scan_iter() if b"lease:x" in key]
        client.close()
        assert locks.try_acquire("x") is None
        assert guard.release() is True


def test_grant_that_no_replica_has_is_given_back(settings, primary):
    use(settings, primary)
    for take in both_sides():
        with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas"):
            take()
        assert locks.get("x") is None


@pytest.mark.parametrize(
    "options",
    [
        {"wait_replicas": -1},
        {"wait_replicas": True},
        {"wait_replicas": "1"},
        {"wait_replicas": 1, "wait_timeout": 0},
        {"wait_replicas": 1, "wait_timeout": 2.5},
        {"wait_replicas": 1, "wait_timeout": True},
        {"wait_replicas": 1, "cluster": True},
    ],
)
def test_wrong_option_is_refused(options):
    with pytest.raises(InvalidLockStore, match="wait_"):
        RedisStore("default", "redis://127.0.0.1:1", **options)
