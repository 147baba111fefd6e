"""How many connections leases need, through what they go, and what happens when one of them hangs."""

from __future__ import annotations

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
from tests.test_transactions import notes, write

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


def test_minder_outlives_whatever_is_raised_while_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_locks.stores import connections as room

    minder = room._Minder()
    looks: list[str] = []

    def look() -> bool:
        looks.append("look")
        if len(looks) < 3:
            raise RuntimeError("a driver's own")
        return False

    monkeypatch.setattr(minder, "_look", look)
    minder._start()
    deadline = time.monotonic() + 10
    while len(looks) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
