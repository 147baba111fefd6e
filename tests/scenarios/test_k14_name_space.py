"""K14: two different things get the same name, or one thing gets different names."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis
from django.core.cache import caches
from django.core.checks import run_checks

from django_locks import locks
from django_locks.stores.redis_wire import CLUSTER_BUCKETS, Wire
from tests.crew import Spec
from tests.scenarios.actors import eventually, store


def test_prefixes_keep_deployments_apart(any_store: Spec, settings: Any, name: str) -> None:
    """B054"""
    settings.LOCKS = {
        "default": {**any_store.locks, "KEY_PREFIX": "stg"},
        "prd": {**any_store.locks, "KEY_PREFIX": "prd"},
        "plain": any_store.locks,
    }
    with locks.lock(name) as stg, locks.using("prd").lock(name) as prd:
        assert (locks.get(name).owner, locks.using("prd").get(name).owner) == (stg.owner, prd.owner)
        assert [lease.name for lease in locks.leases(name)] == [name]
        if "Redis" not in any_store.locks["BACKEND"]:  # there, the prefix is in front of every key
            stored = [store("plain").get(f"{prefix}:{name}").owner for prefix in ("stg", "prd")]
            assert stored == [stg.owner, prd.owner]


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_every_key_on_the_server_carries_the_prefix(kind: str, spec_of: Any, settings: Any, name: str) -> None:
    """B054"""
    spec = spec_of(kind, KEY_PREFIX="stg")
    settings.LOCKS = {"default": spec.locks}
    with redis.Redis.from_url(spec.locks["LOCATION"]) as client:
        client.flushall()
        with locks.lock(name):
            keys = client.keys("*")
    assert len(keys) == 3
    assert all(key.startswith(b"stg:") for key in keys)


def cached(settings: Any, url: str) -> Any:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}}
    return caches["default"]


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_cleared_cache_in_another_database_leaves_the_locks_alone(
    kind: str, spec_of: Any, settings: Any, name: str
) -> None:
    """B056"""
    spec = spec_of(kind)
    settings.LOCKS = {"default": spec.locks}
    cache = cached(settings, f"{spec.locks['LOCATION']}/1")
    cache.set("key", "value")
    with locks.lock(name):
        cache.clear()
        assert cache.get("key") is None
        assert locks.try_acquire(name) is None
    cache.close()
    assert run_checks(tags=["django_locks"]) == []


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_cache_in_the_same_database_is_warned_of_and_its_clearing_is_a_loss_told_in_time(
    kind: str, spec_of: Any, settings: Any, name: str
) -> None:
    """B056"""
    spec = spec_of(kind)
    settings.LOCKS = {"default": spec.locks}
    cache = cached(settings, f"{spec.locks['LOCATION']}/0")
    assert [message.id for message in run_checks(tags=["django_locks"])] == ["django_locks.W008"]
    a = locks.acquire(name, ttl=0.9)
    cache.clear()
    b = locks.acquire(name, renew=False)
    eventually(lambda: a.lost, within=0.3 + 0.7)
    assert b.fence > a.fence
    assert locks.get(name).owner == b.owner
    b.release()
    cache.close()


def test_names_have_stored_identities_of_their_own() -> None:
    """B057"""
    wire, chance = Wire("", CLUSTER_BUCKETS), random.Random(57)
    names = {f"tenant-{chance.getrandbits(64)}" for _ in range(200_000)}
    assert len({wire.bucket(name.encode()).lease + name.encode() for name in names}) == len(names)


def tell_key(member: Any) -> bytes:
    return bytes(Wire("", CLUSTER_BUCKETS).acquire("tenant-7", "o", 1, "h").arguments[1])


def test_stored_identity_is_the_same_in_every_process(crew: Any, spec_of: Any) -> None:
    """B057"""
    told = set(crew.run(spec_of("memory"), tell_key))
    assert told == {tell_key(None)}
    assert b"tenant-7" in told.pop()
