"""Waiters that Redis wakes: lost subscribers, clusters, slots that move, and servers that do not publish."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_locks import locks
from django_locks.stores import redis_push
from tests.conftest import REDIS
from tests.crew import Spec
from tests.servers.fixtures_redis import started
from tests.servers.redis import Server, cluster_servers, move_slot, running, server_of, valkey_binary
from tests.test_waiting import Waiting, queue_of, store, until


def nodes_of(spec: Spec) -> list[Any]:
    """Return clients of all servers of the store."""
    import redis

    urls = spec.locks["LOCATION"]
    return [redis.Redis.from_url(url) for url in ([urls] if isinstance(urls, str) else urls)]


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_lost_subscriber_falls_back_to_looking_and_comes_back(kind: str, spec_of: Any, settings: Any) -> None:
    spec = spec_of(kind)
    settings.LOCKS, nodes = {"default": spec.locks}, nodes_of(spec)

    def cut() -> None:
        for node in nodes:
            node.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    guard, log = locks.acquire("x"), []
    waiting = Waiting("x", log, "granted")
    until(lambda: store().waiters.is_pushed("x"))
    cut()
    until(lambda: not store().waiters.is_pushed("x"))
    until(lambda: store().waiters.is_pushed("x"))
    cut()
    guard.release()
    waiting.thread.join(5)
    assert log == ["granted"]
    for node in nodes:
        node.close()


@pytest.mark.parametrize("is_cluster", [False, True])
def test_who_may_not_publish_releases_all_the_same(is_cluster: bool, settings: Any) -> None:
    """As on Redis 6, which has no sharded channels: waiters look by themselves."""
    servers = cluster_servers() if is_cluster else one_server()
    for found in started(servers):
        spec = Spec({"BACKEND": REDIS, "LOCATION": [one.url for one in found], "OPTIONS": {"cluster": is_cluster}})
        settings.LOCKS, nodes = {"default": spec.locks}, nodes_of(spec)
        for node in nodes:
            node.execute_command("ACL", "SETUSER", "default", "-@pubsub")
        guard, log = locks.acquire("x"), []
        waiting = Waiting("x", log, "granted")
        until(lambda: queue_of("x") == 1)
        assert guard.release() is True
        waiting.thread.join(5)
        assert log == ["granted"]
        assert not store().waiters.is_pushed("x")
        for node in nodes:
            node.close()


@contextmanager
def one_server() -> Iterator[list[Server]]:
    with running(valkey_binary()) as server:
        yield [server]


def subscribed(nodes: list[Any]) -> list[int]:
    """Return how many connections of each node are subscribed to anything."""
    return [len([entry for entry in node.client_list() if int(entry["sub"]) or int(entry["ssub"])]) for node in nodes]


def test_on_a_cluster_one_subscriber_a_node_serves_many_names(spec_of: Any, settings: Any) -> None:
    spec = spec_of("cluster")
    settings.LOCKS, nodes = {"default": spec.locks}, nodes_of(spec)
    names = [f"many:{number}" for number in range(60)]
    guards, log = [locks.acquire(name) for name in names], []
    waiting = [Waiting(name, log, name) for name in names]
    until(lambda: all(store().waiters.is_pushed(name) for name in names))
    assert subscribed(nodes) == [1, 1, 1]
    assert sum(node.execute_command("PUBSUB", "CHANNELS") != [] for node in nodes) == 0, "sent to all nodes"
    before = [node.execute_command("CLUSTER INFO").get("cluster_stats_messages_publish_sent") for node in nodes]
    for guard in guards:
        guard.release()
    for one in waiting:
        one.thread.join()
    assert sorted(log) == sorted(names)
    after = [node.execute_command("CLUSTER INFO").get("cluster_stats_messages_publish_sent") for node in nodes]
    assert after == before
    until(lambda: subscribed(nodes) == [0, 0, 0], within=5)
    for node in nodes:
        node.close()


@pytest.fixture
def own_cluster() -> Iterator[list[Any]]:
    yield from started(cluster_servers())


@pytest.mark.parametrize("is_async", [False, True])
def test_waiters_follow_a_slot_to_another_node(is_async: bool, own_cluster: list[Any], settings: Any) -> None:
    spec = Spec({"BACKEND": REDIS, "LOCATION": [one.url for one in own_cluster], "OPTIONS": {"cluster": True}})
    settings.LOCKS, nodes = {"default": spec.locks}, nodes_of(spec)
    slot = nodes[0].execute_command("CLUSTER", "KEYSLOT", store()._wire.channel("x"))
    guard = locks.acquire("x")
    granted: list[float] = []

    async def wait() -> None:
        async with locks.lock("x", wait=20):
            granted.append(time.perf_counter())

    def wait_too() -> None:
        with locks.lock("x", wait=20):
            granted.append(time.perf_counter())

    if is_async:
        store().close()  # so that nothing is known of the nodes but by asyncio's half
    thread = threading.Thread(target=lambda: asyncio.run(wait()) if is_async else wait_too())
    thread.start()
    until(lambda: store().waiters.is_pushed("x"))
    source, target = move_slot(nodes, slot)
    until(lambda: subscribed(nodes)[target] == 1 and store().waiters.is_pushed("x"))
    assert server_of(nodes, slot) == target != source
    released_at = time.perf_counter()
    guard.release()
    thread.join(5)
    assert granted[0] - released_at < 0.2
    for node in nodes:
        node.close()


def test_cluster_whose_slots_are_not_known_is_asked_for_them(spec_of: Any, settings: Any) -> None:
    settings.LOCKS = {"default": spec_of("cluster").locks}
    locks.acquire("x").release()
    slots = store()._link.client.nodes_manager.slots_cache
    slots.clear()
    with store().watch("x"):
        until(lambda: store().waiters.is_pushed("x"))
    assert len(store()._link.client.nodes_manager.slots_cache) == 16384


def test_quiet_subscriber_is_asked_for_a_sign_of_life(spec_of: Any, settings: Any, monkeypatch: Any) -> None:
    def pings() -> int:
        return int(node.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"])

    monkeypatch.setattr(redis_push, "PING_EVERY", 0)
    spec = spec_of("redis")
    settings.LOCKS, (node,) = {"default": spec.locks}, nodes_of(spec)
    with store().watch("x"):
        until(lambda: store().waiters.is_pushed("x"))
        (before,), asked = node.client_list("pubsub"), pings()
        until(lambda: pings() > asked + 1)
        assert [entry["id"] for entry in node.client_list("pubsub")] == [before["id"]]
        assert store().waiters.is_pushed("x")
    asked = pings()  # it answers in another way when it is subscribed to nothing
    until(lambda: not store()._push._running)
    assert pings() > asked
    node.close()


def test_subscriber_that_gives_no_sign_of_life_is_given_up(settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(redis_push, "PING_EVERY", 0.2)
    monkeypatch.setattr(redis_push, "PING_ANSWER", 0.5)
    for (server,) in started(one_server()):
        settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": server.url}}
        with store().watch("x"):
            until(lambda: store().waiters.is_pushed("x"))
            server.pause()
            try:
                until(lambda: not store().waiters.is_pushed("x"))
            finally:
                server.resume()
            until(lambda: store().waiters.is_pushed("x"))
