"""LOCATION and OPTIONS of the Redis store: what they reach, and what is refused."""

from __future__ import annotations

import math
import random
import threading
import traceback
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from django_locks.exceptions import InvalidLockStore
from django_locks.stores.redis import RedisStore
from django_locks.stores.redis_wire import leases_read
from tests.servers import redis as servers

from .redis_site import (
    Site,
    clients_of,
    unavailable_within,
)

# Client options


OPTIONS: list[dict[str, Any]] = [
    {},
    {"decode_responses": True},
    {"encoding": "latin-1"},
    {"decode_responses": True, "encoding": "latin-1"},
    {"decode_responses": True, "encoding": "ascii"},
    {"protocol": 3, "decode_responses": True},
]


@pytest.mark.parametrize("mine", OPTIONS)
@pytest.mark.parametrize("yours", OPTIONS)
def test_decoding_does_not_matter(any_site: Site, mine: dict[str, Any], yours: dict[str, Any]) -> None:
    a, b = any_site.store(**mine), any_site.store(**yours)
    name, owner, holder = "jöb \U0001f512", "me", "hôst:1 \U0001f512"
    fence = a.acquire(name, owner, 30, holder)
    assert fence
    assert b.acquire(name, "you", 30, "h") is None
    assert b.get(name) is not None
    assert (b.get(name).name, b.get(name).owner, b.get(name).holder) == (name, owner, holder)
    assert [lease.name for lease in b.leases("jö")] == [name]
    assert b.renew([(name, owner, 30)]) == {name}
    assert a.release(name, owner) is True
    assert b.acquire(name, "you", 30, "h") > fence


def test_parameters_of_the_url_work(redis_url: str) -> None:
    store = RedisStore("default", f"{redis_url}/3?decode_responses=True&encoding=latin-1&socket_timeout=1")
    assert store.acquire("jöb-url", "me", 30, "h")
    assert store.servers()[0][2] == 3
    assert store.get("jöb-url").name == "jöb-url"
    assert store.release("jöb-url", "me")


def test_more_threads_than_the_drivers_limit_get_connections(server: servers.Server) -> None:
    store = RedisStore("default", server.url)
    grants: list[int | None] = []
    crowd = [
        threading.Thread(target=lambda n=number: grants.append(store.acquire(f"job {n}", "me", 30, "h")))
        for number in range(150)
    ]
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLIENT", "PAUSE", 700, "WRITE")
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert client.info("clients")["connected_clients"] > 120
    assert len(grants) == 150
    assert all(grants)
    store.close()


# Ways to a server


def test_unix_socket_works(server: servers.Server) -> None:
    store = RedisStore("default", f"{server.unix_url}?db=2")
    assert store.acquire("job", "me", 30, "h")
    assert store.servers() == [(server.unix_path, 2)]
    with redis.Redis.from_url(server.url, db=2) as client:
        assert client.exists("django_locks:{0}:lease:job")


def test_plain_list_asks_the_first_alone(redis_url: str) -> None:
    store = RedisStore("default", [redis_url, "redis://127.0.0.1:1/0"])
    name = "list " + random.randbytes(4).hex()
    assert store.acquire(name, "me", 30, "h")
    assert all(store.get(name) is not None for _ in range(5))
    assert store.release(name, "me")
    assert len(store.servers()) == 1


def test_sentinel_leads_to_the_primary(server: servers.Server) -> None:
    with servers.sentinel(server) as watcher:
        store = RedisStore("default", ["redis://127.0.0.1:1", watcher.url], sentinel="mymaster")
        assert store.acquire("job", "me", 30, "h")
        server.restart()
        assert store.acquire("job", "me", 30, "h")
        assert store.release("job", "me")
        store.close()
        assert store.acquire("job", "me", 30, "h")
    with redis.Redis.from_url(server.url) as client:
        assert client.exists("django_locks:{0}:lease:job")


def test_unknown_primary_is_unavailable(server: servers.Server) -> None:
    with servers.sentinel(server) as watcher:
        url = watcher.url.replace("//", "//:geheim@")
        store = RedisStore("default", url, sentinel="another", sentinel_kwargs={"password": "secret2"})
        with unavailable_within(6) as caught:
            store.acquire("job", "me", 30, "h")
        text = "".join(traceback.format_exception(caught.value))
        assert "geheim" not in text
        assert "secret2" not in text


def test_moved_slot_is_followed(cluster_servers: list[servers.Server]) -> None:
    store = RedisStore("default", [server.url for server in cluster_servers], cluster=True)
    names = [f"job {number}" for number in range(20)]
    for name in names:
        store.acquire(name, "me", 30, "h")
        store.release(name, "me")
    clients = [redis.Redis.from_url(server.url) for server in cluster_servers]
    for bucket in store._wire.buckets:
        servers.move_slot(clients, key_slot(bucket.fence), target=0)
    assert all(store.acquire(name, "me", 30, "h") for name in names)
    assert store.renew([(name, "me", 30) for name in names]) == set(names)
    assert len(list(store.leases())) == 20
    assert all(store.release(name, "me") for name in names)
    for client in clients:
        client.close()


# Settings


@pytest.mark.parametrize(
    ("location", "options", "hints"),
    [
        (None, {}, ["LOCATION"]),
        ("", {}, ["LOCATION", "redis://"]),
        ([], {}, ["LOCATION"]),
        ([b"redis://h"], {}, ["LOCATION"]),
        ("localhost:6379", {}, ["redis://"]),
        ("http://localhost", {}, ["redis://"]),
        ("unix://", {}, ["path"]),
        ("redis://h:port", {}, ["LOCATION"]),
        ("redis://:geheim#x@h:6379/0", {}, ["%XX"]),
        ("redis://h?db=geheim", {}, ["LOCATION"]),
        ("redis://h?sokcet_timeout=1", {}, ["'sokcet_timeout'", "'socket_timeout'"]),
        ("redis://h", {"socket_timout": 1}, ["'socket_timout'", "'socket_timeout'"]),
        ("redis://h", {"sentinal": "m"}, ["'sentinal'", "'sentinel'"]),
        ("redis://h", {"host": "x"}, ["'host'", "LOCATION"]),
        ("redis://h", {"connection_pool": object()}, ["'connection_pool'"]),
        ("redis://h", {"max_connections": -1}, ["max_connections"]),
        ("redis://h", {"cluster": True, "sentinel": "m"}, ["'cluster'", "'sentinel'"]),
        ("redis://h", {"cluster": True, "db": 1}, ["'db'"]),
        ("redis://h/1", {"cluster": True}, ["'db'"]),
        ("redis://h", {"cluster": True, "health_check_interval": 1}, ["'health_check_interval'"]),
        ("redis://h", {"sentinel_kwargs": {"password": "geheim"}}, ["'sentinel_kwargs'"]),
        ("redis://h", {"sentinel": "m", "sentinel_kwargs": {"pasword": "geheim"}}, ["'pasword'", "'password'"]),
        ("unix:///run/redis.sock", {"cluster": True}, ["unix://"]),
    ],
)
def test_wrong_setting_is_refused_by_name(location: Any, options: dict[str, Any], hints: list[str]) -> None:
    with pytest.raises(InvalidLockStore) as caught:
        RedisStore("reports", location, **options)
    assert caught.value.alias == "reports"
    assert "'reports'" in str(caught.value)
    assert all(hint in str(caught.value) for hint in hints), str(caught.value)
    assert "geheim" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_brace_in_a_prefix_is_refused_on_a_cluster() -> None:
    with pytest.raises(InvalidLockStore, match="KEY_PREFIX"):
        RedisStore("default", ["redis://h"], "{}:", cluster=True)
    RedisStore("default", ["redis://h"], "{}:")


def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "django_locks.stores.redis_client", None)
    with pytest.raises(InvalidLockStore, match=r'pip install "django-lease-locks\[redis\]"'):
        RedisStore("default", "redis://h")


@pytest.mark.parametrize(
    ("location", "options", "servers"),
    [
        ("redis://", {}, [("127.0.0.1", 6379, 0)]),
        ("redis://u:p@LOCALHOST/2", {}, [("127.0.0.1", 6379, 2)]),
        ("redis://h:6380?db=3", {"db": 1}, [("h", 6380, 3)]),
        ("rediss://h", {"db": 1}, [("h", 6379, 1)]),
        ("unix:///run/r.sock?db=1", {}, [("/run/r.sock", 1)]),
        (["redis://a", "redis://b"], {}, [("a", 6379, 0)]),
        (("redis://a", "redis://b/0"), {"cluster": True}, [("a", 6379, 0), ("b", 6379, 0)]),
        (["redis://a/4", "redis://b"], {"sentinel": "m"}, [("a", 26379, 4), ("b", 26379, 4)]),
    ],
)
def test_servers_are_told_without_asking_them(location: Any, options: dict[str, Any], servers: list[Any]) -> None:
    store = RedisStore("default", location, **options)
    assert store.servers() == servers
    assert store.check() == []


def test_time_outs_are_short_and_retries_off() -> None:
    (client,) = clients_of(_opened(RedisStore("default", "rediss://h")))
    options = client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (2, 2)
    assert options["retry"].get_retries() == 0
    (client,) = clients_of(_opened(RedisStore("default", "redis://h?socket_timeout=7", socket_connect_timeout=3)))
    options = client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (7, 3)


def _opened(store: RedisStore) -> RedisStore:
    store._open()
    return store


def test_reply_without_a_lease_reads_as_none() -> None:
    assert list(leases_read([b"a", b"b"], [1, None, -2, b"o 5 6 h h", 1500])) != []
    assert [lease.remaining for lease in leases_read([b"b"], [1, b" 5 6 ", math.ceil(1.5)])] == [0.002]
