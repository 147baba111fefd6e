"""The pair on Redis from asyncio."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from bench.results import Result
from bench.servers import World
from bench.timing import async_interleaved, ratio

from .redis import COMPARE_AND_DELETE, TTL

NEEDS = {"redis"}


def run(world: World, quick: bool) -> list[Result]:
    return [asyncio.run(_pair(world, quick))]


async def _pair(world: World, quick: bool) -> Result:
    from redis.asyncio import Redis

    from django_locks import locks

    ours = locks.using("redis")
    client = Redis.from_url(world.redis_url)
    sha = await client.script_load(COMPARE_AND_DELETE)
    result = Result("Redis from asyncio: acquire and release")
    contestants = {
        "django_locks": lambda: _ours(ours),
        "raw SET NX PX, compare-and-delete": lambda: _raw(client, sha),
        "redis-py asyncio Lock": lambda: _redis_py(client),
    }
    samples = await async_interleaved(contestants, 1.2 if quick else 10, 10)
    await client.aclose()
    result.take(samples)
    result.ratios["async_redis_pair_vs_raw"] = ratio(samples, "django_locks", "raw SET NX PX, compare-and-delete")
    return result


async def _ours(ours: Any) -> None:
    guard = await ours.atry_acquire("async")
    await guard.arelease()


async def _raw(client: Any, sha: str) -> None:
    owner = secrets.token_hex(16)
    await client.set("raw async", owner, nx=True, px=TTL * 1000)
    await client.evalsha(sha, 1, "raw async", owner)


async def _redis_py(client: Any) -> None:
    lock = client.lock("redis-py async", timeout=TTL, blocking=False)
    await lock.acquire()
    await lock.release()
