"""How many connections leases need, through what they go, and what happens when one of them hangs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connections, transaction

from django_locks import StoreUnavailable, locks
from django_locks.stores import connections as room
from tests.notes import notes, write
from tests.servers import databases
from tests.servers.fixtures_databases import _started
from tests.servers.pgbouncer import pgbouncer

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


# The private connections


@pytest.fixture
def pool(connect: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[room._Pool]:
    """A pool outside of tests, where private connections are kept for a while."""
    pool = room._Pool(connect("postgresql"))
    monkeypatch.setattr(room, "_tests_are_running", lambda: False)
    yield pool
    pool.close_idle(math.inf)


def session(private: Any) -> int:
    with private.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def test_private_connection_is_used_again_until_it_is_idle(pool: room._Pool) -> None:
    with pool.connection() as private:
        first = session(private)
    with pool.connection() as private:
        assert session(private) == first
    assert pool.close_idle(before=0) is True
    assert pool.close_idle(before=math.inf) is False
    with pool.connection() as private:
        assert session(private) != first


def test_private_connection_that_was_never_opened_is_not_kept(pool: room._Pool) -> None:
    with pool.connection():
        pass
    assert pool.close_idle(before=0) is False


def test_all_private_connections_busy_is_unavailable(connect: Any, settings: Any, monkeypatch: Any) -> None:
    alias = through(connect("postgresql"), settings)
    monkeypatch.setattr(room, "PATIENCE", 0.2)
    with ExitStack() as stack:
        for _ in range(room.MOST):  # by others, as their aliases are those of their threads
            assert room._pool(alias, "callers")._places.acquire(timeout=1)
            stack.callback(room._pool(alias, "callers")._places.release)
        with transaction.atomic(using=alias), pytest.raises(StoreUnavailable, match="All 2 private .* are busy"):
            locks.acquire("x")
    with transaction.atomic(using=alias):
        assert locks.acquire("x").release() is True


def test_private_connection_of_other_settings_is_closed_and_not_used(pool: room._Pool, monkeypatch: Any) -> None:
    with pool.connection() as old:
        first = session(old)
    other = {**connections[pool.alias].settings_dict, "HOST": "localhost"}
    monkeypatch.setattr(connections[pool.alias], "settings_dict", other)
    with pool.connection() as private:
        assert private is not old
        assert private.settings_dict["HOST"] == "localhost"
        assert session(private) != first
    assert old.connection is None


class Raced(list[Any]):
    """Idle connections of which another thread takes the last one just when this one has seen it."""

    def __bool__(self) -> bool:
        seen = len(self) > 0
        self.clear()
        return seen

    def __iter__(self) -> Iterator[Any]:
        seen = self[:]
        self.clear()
        return iter(seen)


def test_idle_connection_that_another_thread_takes_first_is_its_own(pool: room._Pool) -> None:
    with pool.connection() as private:
        first = session(private)
    kept, pool._idle = pool._idle, Raced(pool._idle)
    with pool.connection() as another:  # `_take` has seen one, and finds none
        assert session(another) != first
    another.close()
    pool._idle = Raced(kept)
    pool.close_idle(before=math.inf)
    assert session(private) == first  # in use by the other thread: not closed under its hands
    private.close()


def test_child_of_a_fork_keeps_away_from_its_parents_connections(
    connect: Any, pool: room._Pool, monkeypatch: Any
) -> None:
    alias = pool.alias
    with pool.connection() as private:
        parents = {session(private), session(connections[alias])}
    mine, inherited = connections[alias].connection, list[Any]()
    monkeypatch.setattr(room, "_pools", {(alias, "callers"): pool})
    monkeypatch.setattr(room, "_used", {alias, "not used in this thread"})
    monkeypatch.setattr(room, "_inherited", inherited)
    monkeypatch.setattr(room, "_minder", room._minder)
    try:
        room._after_fork()
        assert inherited == [private, mine]
        with pool.connection() as fresh:
            assert {session(fresh), session(connections[alias])}.isdisjoint(parents)
        assert not mine.closed
        with transaction.atomic(using=alias):  # is the caller's own to sort out
            inside = connections[alias].connection
            room._after_fork()
            assert connections[alias].connection is inside
    finally:
        for theirs in inherited:
            theirs.close()
