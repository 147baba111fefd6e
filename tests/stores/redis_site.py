"""Servers of Redis tests as seen from outside of the store, and what its verbs do there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from django_locks.exceptions import StoreUnavailable
from django_locks.stores.redis import RedisStore

NAMES = ["a", "{x}b", "c{", "}d{", "{}", "job *", "jöb", "\U0001f512" * 200]
VERBS: dict[str, Callable[[RedisStore], Any]] = {
    "acquire": lambda store: store.acquire("other", "o", 30, "h"),
    "acquire again": lambda store: store.acquire("job", "me", 30, "h"),
    "refused": lambda store: store.acquire("job", "you", 30, "h"),
    "renew": lambda store: store.renew([("job", "me", 30)]),
    "release": lambda store: store.release("job", "me"),
    "hold": lambda store: store.release("job", "me", hold_for=5),
    "get": lambda store: store.get("job"),
    "leases": lambda store: list(store.leases()),
    "prune": lambda store: store.prune(0),
}
ONE_ROUND_TRIP = ["acquire", "acquire again", "refused", "renew", "release", "hold", "get", "prune"]


class Site:
    """The servers of one test, seen from outside of the store."""

    def __init__(self, urls: list[str], **options: Any) -> None:
        self.urls, self.options = urls, options
        self.clients = [redis.Redis.from_url(url) for url in urls]

    def store(self, key_prefix: str = "", **options: Any) -> RedisStore:
        return RedisStore("default", self.urls, key_prefix, **self.options, **options)

    def everywhere(self, *command: str) -> list[Any]:
        return [client.execute_command(*command) for client in self.clients]

    def raw_keys(self) -> list[bytes]:
        return sorted(key for keys in self.everywhere("KEYS", "*") for key in keys)

    def content(self) -> dict[bytes, bytes]:
        return {key: client.dump(key) for client in self.clients for key in client.keys("*")}


def cleaned(site: Site) -> Iterator[Site]:
    site.everywhere("FLUSHALL")
    yield site
    for client in site.clients:
        client.close()


@contextmanager
def commands(client: redis.Redis) -> Iterator[list[tuple[str, str]]]:
    """Collect the commands that the server runs meanwhile: who (``lua`` within scripts) and what."""
    seen: list[tuple[str, str]] = []
    with client.monitor() as monitor:
        client.echo("begin")
        while monitor.next_command()["command"] != "ECHO begin":
            pass
        yield seen
        client.echo("end")
        while (entry := monitor.next_command())["command"] != "ECHO end":
            seen.append((entry["client_type"], entry["command"]))


def asked(seen: list[tuple[str, str]]) -> list[str]:
    """Return the names of the commands that came from a client."""
    return [command.split()[0].upper() for who, command in seen if who != "lua"]


def ran(seen: list[tuple[str, str]]) -> list[str]:
    """Return the commands that scripts ran."""
    return [command for who, command in seen if who == "lua"]


@contextmanager
def unavailable_within(seconds: float) -> Iterator[pytest.ExceptionInfo[StoreUnavailable]]:
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        yield caught
    assert time.monotonic() - begin < seconds
    assert caught.value.__cause__ is not None
    assert caught.value.alias == "default"


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def exit_code(child: int) -> int:
    """Wait for the process; one that hangs is killed."""
    deadline = time.monotonic() + 10
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


def clients_of(store: RedisStore) -> list[Any]:
    client: Any = store._link.client  # type: ignore[union-attr]
    return [node.redis_connection for node in client.get_nodes()] if hasattr(client, "get_nodes") else [client]


async def listed(store: RedisStore) -> list[Any]:
    return [lease async for lease in store.aleases()]
