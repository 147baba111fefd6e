"""The Redis store when servers fail, connections break and processes fork."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_locks.exceptions import StoreUnavailable
from django_locks.stores.redis import RedisStore
from django_locks.stores.redis_links import PATIENCE
from tests.servers import redis as servers

from .redis_site import (
    VERBS,
    Site,
    clients_of,
    exit_code,
    unavailable_within,
    wait_for,
)

# Failures


def test_closed_port_is_unavailable() -> None:
    store = RedisStore("default", f"redis://user:geheim@127.0.0.1:{servers.free_port()}")
    for verb, call in VERBS.items():
        with unavailable_within(6) as caught:
            call(store)
        assert "geheim" not in "".join(traceback.format_exception(caught.value)), verb
    assert "'other'" in str(_failure(store, "acquire"))


def _failure(store: RedisStore, verb: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        VERBS[verb](store)
    return caught.value


def test_wrong_password_is_unavailable() -> None:
    with servers.running(servers.valkey_binary(), "--requirepass", "right") as server:
        store = RedisStore("default", server.url.replace("//", "//:geheim@"))
        with unavailable_within(6) as caught:
            store.acquire("job", "me", 30, "h")
        assert "geheim" not in "".join(traceback.format_exception(caught.value))
        assert "geheim" not in repr(store)
        right = RedisStore("default", server.url.replace("//", "//:right@"))
        assert right.acquire("job", "me", 30, "h")
        assert "right" not in repr(right)


@pytest.mark.parametrize("options", [{}, {"cluster": True}, {"sentinel": "mymaster"}])
def test_server_that_never_answers_is_unavailable(options: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        urls = [f"redis://127.0.0.1:{hole.getsockname()[1]}"] * (3 if options else 1)
        store = RedisStore("default", urls, **options)
        with unavailable_within(6):
            store.acquire("job", "me", 30, "h")


@pytest.mark.parametrize("verb", VERBS)
def test_hung_server_is_unavailable(server: servers.Server, verb: str) -> None:
    store = RedisStore("default", server.url, socket_timeout=0.2)
    store.acquire("job", "me", 30, "h")
    server.pause()
    with unavailable_within(1):
        VERBS[verb](store)
    server.resume()
    assert store.acquire("later", "me", 30, "h")


def test_hung_node_does_not_keep_the_others_from_renewals(cluster_servers: list[servers.Server]) -> None:
    store = RedisStore("default", [server.url for server in cluster_servers], cluster=True)
    names = [f"job {number}" for number in range(200)]
    for name in names:
        store.acquire(name, "me", 30, "h")
    cluster_servers[0].pause()
    with unavailable_within(6):
        store.renew([(name, "me", 90) for name in names])
    cluster_servers[0].resume()
    wait_for(lambda: _renewed(store, names) is not None)
    assert len(_renewed(store, names) or ()) > 90
    for server in cluster_servers:
        server.pause()
    with unavailable_within(6):
        store.acquire("job", "me", 30, "h")
    with unavailable_within(6):
        store.renew([(name, "me", 90) for name in names])


def _renewed(store: RedisStore, names: list[str]) -> list[str] | None:
    try:
        return [lease.name for lease in store.leases() if lease.remaining > 60]
    except StoreUnavailable:
        return None


def test_error_of_the_script_is_not_contention(site: Site) -> None:
    site.clients[0].lpush("django_locks:{0}:lease:job", "what?")
    store = site.store()
    with unavailable_within(1):
        store.acquire("job", "me", 30, "h")
    with unavailable_within(1):
        store.release("job", "me")
    assert store.acquire("other", "me", 30, "h")


class Breaking:
    """A link whose connection breaks once, after the request was carried out."""

    def __init__(self, link: Any) -> None:
        self.link, self.broken = link, False

    def run(self, call: Any) -> Any:
        return self._lose(self.link.run(call))

    def run_all(self, calls: Any) -> Any:
        return self._lose(self.link.run_all(calls))

    def _lose(self, reply: Any) -> Any:
        if not self.broken:
            self.broken = True
            raise redis.ConnectionError("Connection closed by server.")
        return reply


def test_lost_reply_of_a_release_is_a_release(site: Site) -> None:
    store = site.store()
    store.acquire("job", "me", 30, "h")
    store._link = Breaking(store._link)  # type: ignore[assignment]
    assert store.release("job", "me") is True
    assert store.release("job", "me") is False


def test_lost_reply_of_an_acquire_is_a_grant(site: Site) -> None:
    store = site.store()
    store.get("job")
    store._link = Breaking(store._link)  # type: ignore[assignment]
    fence = store.acquire("job", "me", 30, "h")
    assert fence == store.get("job").fence


def test_lost_reply_of_a_renewal_is_a_renewal(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("job", "me", 30, "h")
    store._link = Breaking(store._link)  # type: ignore[assignment]
    assert store.renew([("job", "me", 90), ("other", "me", 90)]) == {"job"}
    assert store.get("job").remaining > 60


def test_nodes_for_which_no_time_is_left_are_not_asked(cluster: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cluster.store()
    store.acquire("job", "me", 30, "h")
    slow = SimpleNamespace(monotonic=itertools.count(0, PATIENCE).__next__)
    monkeypatch.setattr("django_locks.stores.redis_links.time", slow)
    with unavailable_within(1) as caught:
        store.renew([("job", "me", 90)])
    assert "No time was left" in str(caught.value)
    assert store.get("job").remaining <= 30


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("behind_sentinel", [False, True])
def test_interrupted_call_does_not_shift_the_replies(server: servers.Server, behind_sentinel: bool) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    with servers.sentinel(server) as watcher:
        store = RedisStore("default", watcher.url, sentinel="mymaster")
        store = store if behind_sentinel else RedisStore("default", server.url)
        store.acquire("warm", "me", 30, "h")
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            server.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupt):
                store.acquire("job", "me", 30, "h")
            threading.Timer(0.3, server.resume).start()
            assert store.acquire("job", "you", 30, "h") is None
            assert store.get("job").owner == "me"
        finally:
            signal.signal(signal.SIGALRM, previous)
            server.resume()


# Processes


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_store_works_on_both_sides_of_a_fork(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("parent", "me", 30, "h")
    child = os.fork()
    if child == 0:
        try:
            fine = all(store.acquire(f"child {n}", "me", 30, "h") and store.get("parent") for n in range(50))
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert all(store.acquire(f"mine {n}", "me", 30, "h") and store.get("parent") for n in range(50))
    assert exit_code(child) == 0
    assert len(list(store.leases())) == 101


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_fork_amid_another_threads_call_leaves_the_child_working(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("parent", "me", 30, "h")
    locks = [store._opening, *[client.connection_pool._lock for client in clients_of(store)]]
    with _held_by_another_thread(locks):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if store.acquire("child", "me", 30, "h") else 1)
            finally:
                os._exit(2)
    assert exit_code(child) == 0


@contextmanager
def _held_by_another_thread(locks: list[Any]) -> Iterator[None]:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_fork_while_another_thread_makes_a_store_is_survived(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = RedisStore._server_push

    def forked(store: RedisStore) -> Any:
        store._forget_parent()
        return make(store)

    monkeypatch.setattr(RedisStore, "_server_push", forked)
    store = RedisStore("default", redis_url)
    assert store.acquire("made in a fork", "me", 0.1, "h")


def test_closed_store_opens_again(any_site: Site) -> None:
    store = any_site.store()
    store.close()
    assert store.acquire("job", "me", 30, "h")
    store.close()
    store.close()
    assert store.release("job", "me") is True
