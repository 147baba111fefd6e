"""Uncontended pairs and refusals on Redis."""

from __future__ import annotations

import secrets
from typing import Any

from bench.peers import available
from bench.results import Result
from bench.servers import World
from bench.timing import interleaved, ratio

from .memory import pair

NEEDS = {"redis"}
TTL = 30

#: Compare and delete, from the manual: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
COMPARE_AND_DELETE = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"""


def run(world: World, quick: bool) -> list[Result]:
    return [_pair(world, quick), _refused(world, quick)]


def _pair(world: World, quick: bool) -> Result:
    from django_locks import locks

    ours = locks.using("redis")
    result = Result("Redis: acquire and release")
    client = _client(world)
    makers = {
        "django_locks": lambda: lambda: pair(ours),
        "raw SET NX PX, compare-and-delete": lambda: raw_pair(client),
        "redis-py Lock": lambda: _redis_py(client),
        "python-redis-lock": lambda: _python_redis_lock(client),
        "django-redis cache.lock": _django_redis,
        "sherlock": lambda: _sherlock(client),
        "pottery Redlock": lambda: _pottery(client),
        "PING": lambda: client.ping,
    }
    samples = interleaved(available(makers, result.notes), 2.0 if quick else 20, 10)
    result.take(samples)
    result.ratios["redis_pair_vs_raw"] = ratio(samples, "django_locks", "raw SET NX PX, compare-and-delete")
    result.ratios["redis_pair_vs_redis_py"] = ratio(samples, "django_locks", "redis-py Lock")
    if "python-redis-lock" in samples:
        result.ratios["python_redis_lock_vs_redis_pair"] = ratio(samples, "python-redis-lock", "django_locks")
    return result


def _refused(world: World, quick: bool) -> Result:
    from django_locks import locks

    ours, client = locks.using("redis"), _client(world)
    held = ours.try_acquire("refused")
    client.set("refused", "x", px=TTL * 1000)
    result = Result("Redis: an attempt that is refused")
    contestants = {
        "django_locks": lambda: ours.try_acquire("refused"),
        "raw SET NX PX": lambda: client.set("refused", "y", nx=True, px=TTL * 1000),
    }
    result.take(interleaved(contestants, 0.3 if quick else 4))
    held.release()
    client.delete("refused")
    return result


def _client(world: World) -> Any:
    import redis

    return redis.Redis.from_url(world.redis_url)


def raw_pair(client: Any) -> Any:
    """Return the least that a lease on Redis takes, over the same client: no fence, no holder, no renewal."""
    sha = client.script_load(COMPARE_AND_DELETE)

    def call() -> None:
        owner = secrets.token_hex(16)
        client.set("raw", owner, nx=True, px=TTL * 1000)
        client.evalsha(sha, 1, "raw", owner)

    return call


def _redis_py(client: Any) -> Any:
    def call() -> None:
        lock = client.lock("redis-py", timeout=TTL, blocking=False)
        lock.acquire()
        lock.release()

    return call


def _python_redis_lock(client: Any) -> Any:
    import redis_lock

    def call() -> None:
        lock = redis_lock.Lock(client, "python-redis-lock", expire=TTL)
        lock.acquire(blocking=False)
        lock.release()

    return call


def _django_redis() -> Any:
    from django.core.cache import cache

    def call() -> None:
        lock = cache.lock("django-redis", timeout=TTL)
        lock.acquire(blocking=False)
        lock.release()

    return call


def _sherlock(client: Any) -> Any:
    import sherlock

    def call() -> None:
        lock = sherlock.RedisLock("sherlock", client=client, expire=TTL)
        lock.acquire(blocking=False)
        lock.release()

    return call


def _pottery(client: Any) -> Any:
    from pottery import Redlock

    def call() -> None:
        lock = Redlock(key="pottery", masters={client}, auto_release_time=TTL)
        lock.acquire(blocking=False)
        lock.release()

    return call
