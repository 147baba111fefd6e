"""K21: poolers, helper threads that keep connections, and connections that go through a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from django_locks import locks
from tests.notes import notes, use, write
from tests.stores.databases import wait_until
from tests.test_connections import bouncer, in_threads, through  # noqa: F401 - a fixture

THREADS = 20


def test_pgbouncer_in_transaction_mode(bouncer: Any, connect: Any, settings: Any, postgresql: Any) -> None:  # noqa: F811
    """B084"""
    connect("postgresql")  # with its tables
    alias = through(connect("postgresql", "bounced", **bouncer.settings), settings)

    def work(index: int) -> None:
        for _ in range(25):
            with locks.lock("x", wait=30):
                write(alias, "a")
            with transaction.atomic(using=alias), locks.lock("y", wait=30):
                write(alias, "b")

    in_threads(2, work, alias)
    assert len(notes(alias)) == 100
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone() == (0,)


@pytest.fixture
def sessions(spec_of: Any, settings: Any, connect: Any, postgresql: Any) -> Callable[[], int]:
    """Return a function that counts the sessions that have begun since then, but its own."""
    other = connect("postgresql", "locks_other")
    with connections[other].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (since,) = cursor.fetchone()
    use("postgresql", spec_of, settings)

    def count() -> int:
        with connections[other].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                " AND pid <> pg_backend_pid() AND backend_start >= %s",
                [since],  # other tests' sessions may still be on their way out
            )
            return int(cursor.fetchone()[0])

    return count


def hold(index: int) -> None:
    for _ in range(5):
        with locks.lock(f"x{index}", ttl=1.5):
            time.sleep(0.15)


def hold_inside(index: int) -> None:
    with transaction.atomic(using="locks_postgresql"):
        hold(index)


def hold_async(index: int) -> None:
    async def hold_all() -> None:
        for _ in range(5):
            async with locks.lock(f"x{index}", ttl=1.5):
                await asyncio.sleep(0.15)

    asyncio.run(hold_all())


@pytest.mark.parametrize("way", [hold, hold_inside, hold_async])
@pytest.mark.parametrize("max_age", [0, 600])
def test_sessions_are_few_and_end_with_the_leases(way: Any, max_age: int, sessions: Any, monkeypatch: Any) -> None:
    """B085"""
    monkeypatch.setattr("django_locks.stores.connections._tests_are_running", lambda: False)  # they keep none
    connections.settings["locks_postgresql"]["CONN_MAX_AGE"] = max_age
    wait_until(lambda: sessions() <= 1)
    before, most, done = sessions(), 0, threading.Event()

    def observe() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, sessions())
            time.sleep(0.01)
        connections["locks_other"].close()

    observer = threading.Thread(target=observe)
    observer.start()
    try:
        in_threads(THREADS, way, "locks_postgresql")
    finally:
        done.set()
        observer.join()
    callers = 0 if way is hold_async else THREADS
    assert most <= before + 1 + callers + 1 + 2  # the observer's counter is another one
    wait_until(lambda: sessions() <= before, timeout=2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_children_of_a_fork_have_connections_of_their_own(kind: str, spec_of: Any, settings: Any) -> None:
    """B087"""
    alias = use(kind, spec_of, settings)
    if kind == "sqlite":  # forbids to carry a connection through a fork; and its writers wait for each other unfairly
        connections[alias].close()
        connections[alias].settings_dict.setdefault("OPTIONS", {})["timeout"] = 60
    else:
        locks.acquire("x").release()
    children = [fork(lambda: take_many(alias)) for _ in range(4)]
    take_many(alias)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert max_at_once(alias) == 1


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def take_many(alias: str) -> None:
    for number in range(200):
        name = f"fork{number % 3}"
        guard = locks.try_acquire(name)
        if guard is None:
            continue
        write(alias, f"+{name}")
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM notes WHERE text = %s", [f"+{name}"])
            if cursor.fetchone()[0] != 1:
                write(alias, "two holders")
            cursor.execute("DELETE FROM notes WHERE text = %s", [f"+{name}"])
        guard.release()
    connections.close_all()


def max_at_once(alias: str) -> int:
    return 1 + len(notes(alias))
