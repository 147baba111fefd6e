"""Locks that can be handed from a holder to a waiter, each with the same three steps."""

from __future__ import annotations

import threading
from typing import Any

PATIENCE = 30


class Ours:
    """A lock of this package: the store of one alias."""

    needs = "default"

    def __init__(self, alias: str) -> None:
        from django_locks import locks

        self._locks, self._name = locks.using(alias), f"handoff:{alias}"
        self._guard: Any = None

    def hold(self) -> None:
        self._guard = self._locks.acquire(self._name, wait=5)

    def wait(self) -> None:
        self._guard = self._locks.acquire(self._name, wait=PATIENCE)

    def give(self) -> None:
        guard, self._guard = self._guard, None
        guard.release()


class OursOnRedis(Ours):
    needs = "redis"

    def __init__(self, redis_url: str) -> None:
        super().__init__("redis")


class OursPolling(Ours):
    needs = "polling"

    def __init__(self, redis_url: str) -> None:
        super().__init__("polling")


class OursNotified(Ours):
    needs = "notify"

    def __init__(self, redis_url: str) -> None:
        super().__init__("notify")


class OursOnMariaDB(Ours):
    needs = "mariadb"

    def __init__(self, redis_url: str) -> None:
        super().__init__("mariadb")


class ByPop:
    """The least that a hand-off on Redis takes: the waiter pops what the holder has pushed, and takes the key."""

    needs = "redis"
    GIVE = "redis.call('DEL', KEYS[1]) redis.call('RPUSH', KEYS[2], 1) redis.call('PEXPIRE', KEYS[2], 5000)"

    def __init__(self, redis_url: str) -> None:
        import redis

        self._client = redis.Redis.from_url(redis_url)
        self._sha = self._client.script_load(self.GIVE)

    def hold(self) -> None:
        self._client.delete("pop:signal")
        assert self._take()

    def wait(self) -> None:
        self._client.blpop(["pop:signal"], PATIENCE)
        assert self._take()

    def give(self) -> None:
        self._client.evalsha(self._sha, 2, "pop", "pop:signal")

    def _take(self) -> Any:
        return self._client.set("pop", "x", nx=True, px=PATIENCE * 1000)


class RedisPy:
    """redis-py's Lock, which looks every 0.1 s."""

    needs = "redis"

    def __init__(self, redis_url: str) -> None:
        import redis

        self._lock = redis.Redis.from_url(redis_url).lock("redis-py handoff", timeout=PATIENCE, thread_local=False)

    def hold(self) -> None:
        assert self._lock.acquire()

    wait = hold

    def give(self) -> None:
        self._lock.release()


class ByCondition:
    """A bare `threading.Condition`."""

    def __init__(self) -> None:
        self._free, self._taken = threading.Condition(), False

    def hold(self) -> None:
        with self._free:
            self._free.wait_for(lambda: not self._taken, PATIENCE)
            self._taken = True

    wait = hold

    def give(self) -> None:
        with self._free:
            self._taken = False
            self._free.notify()


KINDS: dict[str, Any] = {
    "redis": OursOnRedis,
    "BLPOP, SET NX": ByPop,
    "redis-py Lock": RedisPy,
    "postgres, notify": OursNotified,
    "postgres, polling": OursPolling,
    "mariadb, polling": OursOnMariaDB,
}
