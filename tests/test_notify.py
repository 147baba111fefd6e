"""Waiters that PostgreSQL wakes: lost listeners, servers that are down, and forks."""

from __future__ import annotations

import os
from typing import Any

import pytest
from django.db import connections

from django_locks import locks
from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql.notify import LOCK_CLASS, PostgreSQLPush
from django_locks.stores.waiting import Waiters
from tests.stores.redis_site import exit_code
from tests.test_waiting import Waiting, store, until


@pytest.fixture
def alias(spec_of: Any, settings: Any) -> str:
    """Let ``locks`` use NOTIFY, and return the alias of its database."""
    spec = spec_of("postgresql")
    settings.LOCKS = {"default": {**spec.locks, "OPTIONS": {"notify": True}}}
    return str(spec.locks["LOCATION"])


def listeners(alias: str, what: str = "pid") -> list[Any]:
    """Return the sessions of all who listen for a name."""
    with connections[alias].cursor() as cursor:
        locked = "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
        cursor.execute(f"SELECT {what} FROM ({locked}) AS listener", [LOCK_CLASS])
        return [value for (value,) in cursor.fetchall()]


def test_lost_listener_falls_back_to_looking_and_comes_back(alias: str) -> None:
    guard, log = locks.acquire("x"), []
    waiting = Waiting("x", log, "granted")
    until(lambda: store().waiters.is_pushed("x"))
    (before,) = listeners(alias)
    listeners(alias, "pg_terminate_backend(pid, 5000)")
    until(lambda: listeners(alias) not in ([], [before]))
    until(lambda: store().waiters.is_pushed("x"))
    listeners(alias, "pg_terminate_backend(pid, 5000)")
    guard.release()
    waiting.thread.join(5)
    assert log == ["granted"]


def test_listener_ends_when_all_have_given_up_while_the_server_was_down(connect: Any) -> None:
    down = DatabaseStore("default", connect("postgresql", "locks_down", migrate=False, PORT="1"), notify=True)
    with down.watch("x"):
        assert down._push._running
    until(lambda: not down._push._running)
    assert not down.waiters.is_pushed("x")


def test_name_that_nobody_waits_for_any_more_is_not_watched(alias: str) -> None:
    push = PostgreSQLPush(Waiters(), lambda: connections[alias])
    push._running = True  # as if the thread were about to look
    push.want("x")
    push.unwant("x")
    connections[alias].ensure_connection()
    push._apply_changes(connections[alias].connection)
    assert not push.is_watching("x")
    assert listeners(alias) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_child_of_a_fork_listens_by_itself(alias: str) -> None:
    with store().watch("x"):
        until(lambda: store().waiters.is_pushed("x"))
        (mine,) = listeners(alias)
        child = os.fork()
        if child == 0:
            try:
                assert not store().waiters.is_pushed("x")
                with store().watch("x"):
                    until(lambda: store().waiters.is_pushed("x"))
                    assert len(listeners(alias)) == 2
                os._exit(0)
            finally:
                os._exit(1)
        assert exit_code(child) == 0
        assert store().waiters.is_pushed("x")
        assert mine in listeners(alias)
