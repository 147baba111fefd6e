"""What is special about the Redis store under asyncio, on real servers."""

from __future__ import annotations

import asyncio
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import redis

from django_locks.stores.redis import RedisStore
from django_locks.stores.redis_async import _Limit
from django_locks.stores.redis_links import TIMEOUT
from tests.loops import in_loop
from tests.servers import redis as servers

from .redis_site import Site, asked, commands, listed, unavailable_within

VERBS: dict[str, Callable[[RedisStore], Any]] = {
    "acquire": lambda store: store.aacquire("other", "o", 30, "h"),
    "acquire again": lambda store: store.aacquire("job", "me", 30, "h"),
    "refused": lambda store: store.aacquire("job", "you", 30, "h"),
    "renew": lambda store: store.arenew([("job", "me", 30)]),
    "release": lambda store: store.arelease("job", "me"),
    "hold": lambda store: store.arelease("job", "me", hold_for=5),
    "get": lambda store: store.aget("job"),
    "leases": listed,
}


# Requests


@pytest.mark.parametrize("verb", VERBS)
@in_loop
async def test_call_after_script_flush_succeeds(any_site: Site, verb: str) -> None:
    store, other = any_site.store(), any_site.store("b")
    for each in (store, other):
        await each.aacquire("job", "me", 30, "h")
    expected = await VERBS[verb](other)
    any_site.everywhere("SCRIPT", "FLUSH")
    assert type(await VERBS[verb](store)) is type(expected)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "leases"])
@in_loop
async def test_verb_is_one_round_trip(site: Site, verb: str) -> None:
    store, warm = site.store(), site.store("warm")
    await store.aacquire("job", "me", 30, "h")
    await VERBS[verb](warm)
    await store.aacquire("job", "me", 30, "h")
    with commands(site.clients[0]) as seen:
        await VERBS[verb](store)
    assert asked(seen) == ["EVALSHA"]
    warm.close()  # not left to the collector, which may finalize connections first


@pytest.mark.parametrize("verb", VERBS)
@in_loop
async def test_server_restarted_while_idle_is_not_noticed(server: servers.Server, verb: str) -> None:
    store = RedisStore("default", server.url)
    before = await store.aacquire("job", "me", 30, "h")
    server.restart()
    await asyncio.sleep(0.05)  # the loop, which stood still meanwhile, sees the end of the connection
    assert (await VERBS[verb](store)) in (None, set(), [], False) or "acquire" in verb or verb == "refused"
    assert await store.aacquire("next", "me", 30, "h") > before


@in_loop
async def test_more_tasks_than_the_drivers_limit_get_connections(server: servers.Server) -> None:
    store = RedisStore("default", server.url)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLIENT", "PAUSE", 700, "WRITE")
        grants = await asyncio.gather(*(store.aacquire(f"job {n}", "me", 30, "h") for n in range(150)))
        assert client.info("clients")["connected_clients"] > 120
    assert all(grants)


@in_loop
async def test_unix_socket_works(server: servers.Server) -> None:
    store = RedisStore("default", f"{server.unix_url}?db=2")
    assert await store.aacquire("job", "me", 30, "h")
    assert store.get("job") is not None


@in_loop
async def test_sentinel_leads_to_the_primary(server: servers.Server) -> None:
    with servers.sentinel(server) as watcher:
        store = RedisStore("default", ["redis://127.0.0.1:1", watcher.url], sentinel="mymaster")
        assert await store.aacquire("job", "me", 30, "h")
        server.restart()
        assert await store.aacquire("job", "me", 30, "h")
        assert await store.arelease("job", "me")
        store.close()
        assert await store.aacquire("job", "me", 30, "h")


@in_loop
async def test_unknown_primary_is_unavailable(server: servers.Server) -> None:
    with servers.sentinel(server) as watcher:
        url = watcher.url.replace("//", "//:geheim@")
        store = RedisStore("default", url, sentinel="another", sentinel_kwargs={"password": "secret2"})
        with unavailable_within(6) as caught:
            await store.aacquire("job", "me", 30, "h")
        text = "".join(traceback.format_exception(caught.value))
        assert "geheim" not in text
        assert "secret2" not in text


@in_loop
async def test_leases_over_pages_and_batches_are_all_found_in_order(site: Site) -> None:
    store = site.store()
    names = sorted(f"{kind}:{number}" for number in range(650) for kind in ("a*", "ab"))
    for name in names:
        store.acquire(name, "me", 60, "h")
    assert [lease.name for lease in await listed(store)] == names
    assert [lease.name async for lease in store.aleases("a*")] == [name for name in names if name.startswith("a*")]


# Failures


@in_loop
async def test_closed_port_is_unavailable() -> None:
    store = RedisStore("default", f"redis://user:geheim@127.0.0.1:{servers.free_port()}")
    for verb, call in VERBS.items():
        with unavailable_within(6) as caught:
            await call(store)
        assert "geheim" not in "".join(traceback.format_exception(caught.value)), verb


@in_loop
async def test_wrong_password_is_unavailable() -> None:
    with servers.running(servers.valkey_binary(), "--requirepass", "right") as server:
        store = RedisStore("default", server.url.replace("//", "//:geheim@"))
        with unavailable_within(6) as caught:
            await store.aacquire("job", "me", 30, "h")
        assert "geheim" not in "".join(traceback.format_exception(caught.value))
        right = RedisStore("default", server.url.replace("//", "//:right@"))
        assert await right.aacquire("job", "me", 30, "h")


@pytest.mark.parametrize("options", [{}, {"cluster": True}, {"sentinel": "mymaster"}])
@in_loop
async def test_server_that_never_answers_is_unavailable(options: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        urls = [f"redis://127.0.0.1:{hole.getsockname()[1]}"] * (3 if options else 1)
        with unavailable_within(6):
            await RedisStore("default", urls, **options).aacquire("job", "me", 30, "h")


@pytest.mark.parametrize("verb", VERBS)
@in_loop
async def test_hung_server_is_unavailable(server: servers.Server, verb: str) -> None:
    store = RedisStore("default", server.url, socket_timeout=0.2)
    await store.aacquire("job", "me", 30, "h")
    server.pause()
    with unavailable_within(1):
        await VERBS[verb](store)
    server.resume()
    assert await store.aacquire("later", "me", 30, "h")


@in_loop
async def test_without_a_time_out_a_hung_server_is_waited_for(server: servers.Server) -> None:
    store = RedisStore("default", server.url, socket_timeout=None)
    await store.aacquire("job", "me", 30, "h")
    server.pause()
    task = asyncio.ensure_future(store.aget("job"))
    await asyncio.sleep(TIMEOUT + 0.3)
    assert not task.done()
    server.resume()
    assert (await task).owner == "me"


@in_loop
async def test_time_out_of_a_connection_that_was_closed_already_is_one_all_the_same(valkey_url: str) -> None:
    link: Any = RedisStore("default", valkey_url)._async_links.get()
    connection = await link._new_one()
    limit = _Limit(connection, 0.01)
    await connection.disconnect()
    await asyncio.sleep(0.05)
    assert limit.passed
    await link._put_away(connection)


@in_loop
async def test_task_cancelled_while_it_asks_a_hung_server_ends_with_the_time_out(server: servers.Server) -> None:
    store = RedisStore("default", server.url, socket_timeout=0.5)
    await store.aacquire("job", "me", 30, "h")
    server.pause()

    async def take() -> None:
        await store.see_through(store.aacquire("other", "me", 30, "h"))

    task, began = asyncio.ensure_future(take()), time.monotonic()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0.4 < time.monotonic() - began < 2
    server.resume()
    assert await store.aacquire("later", "me", 30, "h")


@in_loop
async def test_task_cancelled_while_it_connects_leaves_its_connection_to_others(server: servers.Server) -> None:
    store = RedisStore("default", server.url, max_connections=1)
    server.pause()
    task = asyncio.ensure_future(store.aget("job"))
    await asyncio.sleep(0.1)
    task.cancel()
    server.resume()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.aacquire("job", "me", 30, "h")


@in_loop
async def test_hung_node_does_not_keep_the_others_from_renewals() -> None:
    with servers.cluster_servers() as nodes:
        store = RedisStore("default", [node.url for node in nodes], cluster=True, socket_timeout=0.5)
        names = [f"job {number}" for number in range(60)]
        for name in names:
            await store.aacquire(name, "me", 30, "h")
        nodes[0].pause()
        with unavailable_within(6):
            await store.arenew([(name, "me", 90) for name in names])
        nodes[0].resume()
        renewed = [lease.name for lease in await listed(store) if lease.remaining > 60]
        assert len(renewed) > 25


def moved(site: Site) -> int:
    """Return how many calls went to a node that does not serve their slot."""
    stats = [client.info("errorstats").get("errorstat_MOVED", {"count": 0}) for client in site.clients]
    return sum(int(entry["count"]) for entry in stats)


@in_loop
async def test_first_calls_to_a_cluster_go_where_their_keys_live(cluster: Site) -> None:
    before, store = moved(cluster), cluster.store()
    assert all(await asyncio.gather(*(store.aacquire(f"job {n}", "me", 30, "h") for n in range(16))))
    assert moved(cluster) == before


@in_loop
async def test_slots_that_moved_break_off_no_call(cluster: Site) -> None:
    before, store = moved(cluster), cluster.store()
    await asyncio.gather(*(store.aacquire(f"warm {n}", "me", 30, "h") for n in range(16)))
    there = {entry["id"] for client in cluster.clients for entry in client.client_list()}
    manager = store._async_links.get().client.nodes_manager
    nodes = list(manager.nodes_cache.values())
    for slot, (node, *_) in manager.slots_cache.items():
        manager.slots_cache[slot] = [nodes[nodes.index(node) - 1]]  # as before a resharding
    assert all(await asyncio.gather(*(store.aacquire(f"job {n}", "me", 30, "h") for n in range(64))))
    assert moved(cluster) > before
    assert there <= {entry["id"] for client in cluster.clients for entry in client.client_list()}


@in_loop
async def test_error_of_the_script_is_not_contention(site: Site) -> None:
    site.clients[0].lpush("django_locks:{0}:lease:job", "what?")
    store = site.store()
    with unavailable_within(1):
        await store.aacquire("job", "me", 30, "h")
    with unavailable_within(1):
        await store.arelease("job", "me")
    assert await store.aacquire("other", "me", 30, "h")


class Breaking:
    """A link whose connection breaks once, after the request was carried out."""

    def __init__(self, link: Any) -> None:
        self.link, self.broken = link, False

    async def run(self, call: Any) -> Any:
        return self._lose(await self.link.run(call))

    async def run_all(self, calls: Any) -> Any:
        return self._lose(await self.link.run_all(calls))

    def _lose(self, reply: Any) -> Any:
        if not self.broken:
            self.broken = True
            raise redis.ConnectionError("Connection closed by server.")
        return reply


@in_loop
async def test_lost_reply_of_a_release_is_a_release(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.store()
    await store.aacquire("job", "me", 30, "h")
    link: Any = Breaking(store._async_links.get())
    monkeypatch.setattr(store._async_links, "get", lambda: link)
    assert await store.arelease("job", "me") is True
    assert await store.arelease("job", "me") is False


@in_loop
async def test_lost_reply_of_an_acquire_is_a_grant(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.store()
    link: Any = Breaking(store._async_links.get())
    monkeypatch.setattr(store._async_links, "get", lambda: link)
    fence = await store.aacquire("job", "me", 30, "h")
    assert fence == store.get("job").fence


@in_loop
async def test_lost_reply_of_a_renewal_is_a_renewal(any_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = any_site.store()
    await store.aacquire("job", "me", 30, "h")
    link: Any = Breaking(store._async_links.get())
    monkeypatch.setattr(store._async_links, "get", lambda: link)
    assert await store.arenew([("job", "me", 90), ("other", "me", 90)]) == {"job"}
    assert store.get("job").remaining > 60


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4, 5, 8])
@in_loop
async def test_cancelled_call_does_not_shift_the_replies(any_site: Site, rounds: int) -> None:
    store = any_site.store()
    await store.aacquire("job", "me", 30, "h")
    for _ in range(10):
        task = asyncio.ensure_future(store.aacquire("another", "o", 30, "h"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await store.aacquire("job", "you", 30, "h") is None
        assert (await store.aget("job")).owner == "me"


@in_loop
async def test_call_cancelled_while_the_server_hangs_ends_at_once(server: servers.Server) -> None:
    store = RedisStore("default", server.url)
    await store.aacquire("job", "me", 30, "h")
    server.pause()
    task = asyncio.ensure_future(store.aget("job"))
    await asyncio.sleep(0.1)
    task.cancel()
    before = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - before < 1
    server.resume()
    assert await store.aacquire("job", "you", 30, "h") is None
    assert (await store.aget("job")).owner == "me"
