"""The idle connections that the Redis store keeps by itself."""

from __future__ import annotations

import select
import threading
from typing import Any
from uuid import uuid4

import pytest
import redis

from django_locks.stores.redis import RedisStore

ME = "a" * 32


@pytest.fixture
def store(redis_url: str) -> Any:
    store = RedisStore("default", redis_url, uuid4().hex)  # other tests leave leases behind
    yield store
    store.close()


def link_of(store: RedisStore) -> Any:
    return store._link or store._open()


def test_connection_is_used_again_past_the_pool(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    pool = link_of(store)._pool
    real = pool.get_connection
    monkeypatch.setattr(pool, "get_connection", lambda: asked.append(1) or real())
    for _ in range(5):
        store.acquire("job", ME, 30, "me")
        store.release("job", ME)
    assert len(asked) == 1
    assert len(link_of(store)._kept) == 1


def test_connection_cut_while_idle_goes_unnoticed(store: RedisStore, redis_url: str) -> None:
    store.acquire("job", ME, 30, "me")
    with redis.Redis.from_url(redis_url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    assert store.release("job", ME) is True
    with redis.Redis.from_url(redis_url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    assert store.release("job", ME) is False  # not "maybe": nothing was sent on the dead connection


def test_connection_that_was_left_with_an_answer_gives_it_to_nobody(store: RedisStore) -> None:
    store.acquire("job", ME, 30, "me")
    connection = link_of(store)._kept[-1]
    connection.send_command("PING")
    assert select.select([connection._sock], [], [], 5)[0]  # the answer has come
    assert store.release("job", ME) is True


def test_connection_of_a_failed_request_is_given_back_to_the_pool(store: RedisStore) -> None:
    store.acquire("job", ME, 30, "me")
    connection = link_of(store)._kept[-1]
    connection.send_command = None
    with pytest.raises(Exception, match="release"):
        store.release("job", ME)
    assert link_of(store)._kept == []


def test_threads_have_a_connection_each(store: RedisStore) -> None:
    def pair(number: int) -> None:
        for _ in range(20):
            assert store.acquire(f"job{number}", ME, 30, "me")
            assert store.release(f"job{number}", ME)

    threads = [threading.Thread(target=pair, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = link_of(store)._kept
    assert 1 <= len(kept) == len(set(map(id, kept))) <= 8


def test_login_that_changes_is_left_to_the_pool(redis_url: str) -> None:
    provider = redis.UsernamePasswordCredentialProvider("default", "")
    store = RedisStore("default", redis_url, credential_provider=provider)
    assert link_of(store)._kept is None
    store.close()


def test_close_gives_all_back(store: RedisStore) -> None:
    store.acquire("job", ME, 30, "me")
    link = link_of(store)
    store.close()
    assert link._kept == []
    assert not link._pool._in_use_connections


class Raced(list[Any]):
    """Kept connections of which another thread takes the last one just when this one has seen it."""

    def __bool__(self) -> bool:
        seen = len(self) > 0
        self.clear()
        return seen


def test_connection_that_another_thread_takes_first_is_its_own(store: RedisStore) -> None:
    store.acquire("job", ME, 30, "me")
    link = link_of(store)
    theirs, link._kept = link._kept[-1], Raced(link._kept)
    assert store.release("job", ME) is True
    assert theirs not in link._kept
    assert len(link._pool._in_use_connections) == 2


def test_close_while_another_thread_takes_the_last_connection_is_fine(store: RedisStore) -> None:
    store.acquire("job", ME, 30, "me")
    link = link_of(store)
    link._kept = Raced(link._kept)
    store.close()
    assert store.release("job", ME) is True
