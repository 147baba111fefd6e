"""How many connections leases need, through what they go, and what happens when one of them hangs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connections, transaction

from django_locks import StoreUnavailable, locks
from tests.servers import databases
from tests.servers.fixtures_databases import _started
from tests.servers.pgbouncer import pgbouncer
from tests.stores.databases import wait_until
from tests.test_transactions import notes, use, write

THREADS = 20
DATABASE = "django_locks.stores.database.DatabaseStore"


@pytest.fixture
def bouncer(postgresql: databases.Server) -> Iterator[databases.Server]:
    yield from _started(lambda: pgbouncer(postgresql, size=4))


def through(alias: str, settings: Any) -> str:
    """Let ``locks`` use the alias."""
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS notes")
        cursor.execute("CREATE TABLE notes (text varchar(50))")
    return alias


def in_threads(number: int, work: Callable[[int], object], alias: str) -> None:
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)
        finally:
            connections[alias].close()

    threads = [threading.Thread(target=run, args=[index]) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# How many


@pytest.fixture
def sessions(spec_of: Any, settings: Any, connect: Any, postgresql: Any) -> Callable[[], int]:
    """Return a function that counts the server's sessions but its own."""
    use("postgresql", spec_of, settings)
    other = connect("postgresql", "locks_other")

    def count() -> int:
        with connections[other].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                " AND pid <> pg_backend_pid()"
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


# Through what


def use_all_ways(alias: str) -> None:
    """Hold more locks at once, in transactions, than there are connections to have."""

    def work(index: int) -> None:
        for _ in range(5):
            with locks.lock(f"x{index}", ttl=2) as guard, guard.atomic(using=alias):
                write(alias, "a")
            with transaction.atomic(using=alias), locks.lock(f"y{index % 2}", wait=30):
                write(alias, "b")

    in_threads(4, work, alias)
    assert len(notes(alias)) == 40
    assert list(locks.leases()) == []


def test_pgbouncer_in_transaction_mode(bouncer: Any, connect: Any, settings: Any, postgresql: Any) -> None:
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


def test_pool_of_psycopg_with_all_its_connections_in_transactions(connect: Any, settings: Any) -> None:
    pytest.importorskip("psycopg_pool")
    pool = {"min_size": 1, "max_size": 4, "timeout": 10}
    alias = connect("postgresql", "pooled", CONN_MAX_AGE=0, OPTIONS={"pool": pool})
    through(alias, settings)
    connections[alias].close()
    try:
        use_all_ways(alias)
    finally:
        connections[alias].close_pool()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_autocommit_off(kind: str, connect: Any, settings: Any) -> None:
    connect(kind)
    alias = connect(kind, "manual", migrate=False, AUTOCOMMIT=False)
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": f"locks_{kind}"}}
    through(f"locks_{kind}", settings)
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}
    with locks.lock("x") as guard:
        write(alias, "a")
        assert locks.try_acquire("x") is None
    assert not guard.released
    connections[alias].rollback()
    assert guard.released
    assert notes(alias) == []
    connections[alias].rollback()


def test_autocommit_switched_on_ends_the_transaction_too(connect: Any, settings: Any) -> None:
    alias = through(connect("mariadb"), settings)
    connections[alias].set_autocommit(False)
    with locks.lock("x") as guard:
        write(alias, "a")
    assert not guard.released
    connections[alias].set_autocommit(True)  # commits, says MySQL's manual
    assert guard.released
    assert notes(alias) == ["a"]


# What hangs


def test_paused_server_stops_nobody_for_long(connect: Any, settings: Any) -> None:
    with ExitStack() as stack:
        server = next(generator := _started(databases.postgres))
        stack.callback(lambda: next(generator, None))
        alias = through(connect("postgresql", "paused", **server.settings), settings)
        guard = locks.acquire("x", ttl=60)
        server.pause()
        stack.callback(server.resume)
        for is_inside in (False, True):
            start = time.monotonic()
            with ExitStack() as block:
                if is_inside:
                    connections[alias].in_atomic_block = True
                    block.callback(setattr, connections[alias], "in_atomic_block", False)
                with pytest.raises(StoreUnavailable):
                    guard.extend()
            assert time.monotonic() - start < 6 + 3
        server.resume()
        guard.extend()  # over a new connection
        assert guard.release() is True
        assert notes(alias) == []  # and the caller's is usable


def test_pooler_without_a_free_connection_stops_nobody_for_long(bouncer: Any, connect: Any, settings: Any) -> None:
    connect("postgresql")
    alias = through(connect("postgresql", "bounced", **bouncer.settings), settings)
    all_in, refused = threading.Barrier(4), []

    def work(index: int) -> None:
        with transaction.atomic(using=alias):
            write(alias, "a")
            all_in.wait(10)
            if index == 0:
                start = time.monotonic()
                with pytest.raises(StoreUnavailable):
                    locks.acquire("x")
                refused.append(time.monotonic() - start)
            all_in.wait(30)

    in_threads(4, work, alias)
    assert refused[0] < 6 + 3
    assert len(notes(alias)) == 4
    assert locks.try_acquire("x").release()


def test_statement_of_a_suspended_process_is_not_cut(connect: Any, settings: Any, monkeypatch: Any) -> None:
    through(connect("postgresql"), settings)
    now = time.monotonic
    monkeypatch.setattr("django_locks.clock.now", lambda: now() + (1000 if jumped.is_set() else 0))
    jumped = threading.Event()
    with connections["locks_postgresql"].execute_wrapper(lambda execute, *args: (jumped.set(), execute(*args))[1]):
        assert locks.get("x") is None


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork here")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_children_of_a_fork_have_connections_of_their_own(kind: str, spec_of: Any, settings: Any) -> None:
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
