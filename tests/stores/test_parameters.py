"""Lua and SQL get names, owners, holders and all other text as parameters: what is sent never depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from redis.asyncio.connection import AbstractConnection as AsyncConnection
from redis.connection import AbstractConnection

from django_locks.stores import redis_wire
from django_locks.stores.base import BaseStore
from django_locks.stores.database import DatabaseStore
from django_locks.stores.redis import RedisStore
from django_locks.stores.redis_wire import Script
from tests.servers.fixtures_databases import Connect
from tests.stores.databases import alias_of, store_of

BENIGN = ("job", "a" * 32, "web-1")
HOSTILE = (
    "x'); DROP TABLE django_locks_lease; --%s %(name)s {table} \\",
    "'||owner||'\"`]]' .. os %()s",
    "h' OR 1=1 /* {now} */ ]] redis.call('FLUSHALL') --",
)


def everything(store: BaseStore, name: str, owner: str, holder: str) -> None:
    """Ask each verb, with text of the caller's in each place."""
    assert store.acquire(name, owner, 60, holder)
    assert store.acquire(name, f"{owner[:30]}!", 60, holder) is None
    assert store.acquire(name + "2", owner, 60, holder)
    assert store.renew([(name, owner, 60)]) == {name}
    assert store.renew([(name, owner, 60), (name + "2", owner, 60)]) == {name, name + "2"}
    found = store.get(name)
    assert found is not None
    assert (found.name, found.owner, found.holder) == (name, owner, holder)
    assert {lease.name for lease in store.leases(name)} == {name, name + "2"}
    assert {lease.name for lease in store.browse(0, 10, 5).leases} == {name, name + "2"}
    assert store.release(name, owner, 60)
    assert store.release(name, "")
    assert store.release(name + "2", owner, outcome=holder[:16])
    if isinstance(store, DatabaseStore):
        store._forget([name, name + "2"], 0)
    asyncio.run(everything_async(store, name + "3", owner, holder))


async def everything_async(store: BaseStore, name: str, owner: str, holder: str) -> None:
    assert await store.aacquire(name, owner, 60, holder)
    assert await store.arenew([(name, owner, 60)]) == {name}
    assert await store.aget(name)
    assert [lease async for lease in store.aleases(name)]
    assert await store.arelease(name, owner)


@contextmanager
def sent_to_redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Collect the commands that are handed to the driver's connections."""
    sent: list[tuple[Any, ...]] = []
    pack, pack_async = AbstractConnection.send_command, AsyncConnection.send_command

    def send_command(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(args)
        return pack(self, *args, **kwargs)

    async def send_command_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(args)
        return await pack_async(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(AbstractConnection, "send_command", send_command)
        patch.setattr(AsyncConnection, "send_command", send_command_async)
        yield sent


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_scripts_are_the_package_s_own_whatever_the_text(
    kind: str, spec_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [each for each in vars(redis_wire).values() if isinstance(each, Script)]
    known = {script.sha for script in scripts} | {script.source for script in scripts}
    store = RedisStore("default", spec_of(kind).locks["LOCATION"])
    with sent_to_redis(monkeypatch) as sent:
        everything(store, *HOSTILE)
    store.close()
    evals = [command for command in sent if command[0] in ("EVALSHA", "EVAL")]
    assert len(evals) > 15
    assert {command[1] for command in evals} <= known
    texts = [word.encode() for word in HOSTILE]
    for command in sent:
        said = [word if isinstance(word, bytes) else str(word).encode() for word in command[:3]]
        assert not any(text in word for text in texts for word in said), command
    assert any(texts[0] in word for command in evals for word in command[3:] if isinstance(word, bytes))


@pytest.mark.parametrize("kind", ["sqlite", "old sqlite", "postgresql", "mariadb", "generic postgresql"])
def test_statements_are_the_same_whatever_the_text(kind: str, connect: Connect) -> None:
    store = store_of(kind, connect)
    first, second = statements(store, *BENIGN), statements(store, *HOSTILE)
    assert first == second
    assert len(first) > 10


@pytest.mark.parametrize("data", ["sqlite", "postgresql", "mariadb"])
def test_fences_and_the_admin_s_search_are_asked_by_parameters(data: str, connect: Connect, settings: Any) -> None:
    alias = connect(data)
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore", "LOCATION": alias}}
    calls: Callable[[str], list[str]] = lambda text: collected(alias, lambda: look(alias, text))  # noqa: E731
    assert calls(BENIGN[0]) == calls(HOSTILE[0])


def look(alias: str, text: str) -> None:
    from django_locks import listing
    from django_locks.models import Fence

    Fence.raise_to(alias, text, 5)
    with transaction.atomic(using=alias):
        assert Fence.hold(alias, text, 5)
    Fence.objects.using(alias).all().delete()
    listing.listing(listing.Wish(text, "held"), "default", 1, facets=True)
    listing.listing(listing.Wish(text, prefix=text))


def statements(store: DatabaseStore, name: str, owner: str, holder: str) -> list[str]:
    connections[alias_of(store)].ensure_connection()
    store.get("warm")
    return collected(alias_of(store), lambda: everything(store, name, owner[:32], holder))


def collected(alias: str, call: Callable[[], None]) -> list[str]:
    """Return the statements that the call sends on the thread's own connection."""
    sent: list[str] = []

    def wrapper(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        sent.append(sql)
        return execute(sql, parameters, many, context)

    with connections[alias].execute_wrapper(wrapper):
        call()
    return sent
