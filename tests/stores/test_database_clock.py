"""Leases in a database end by the database's clock, and not a tick too early."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import override_settings

from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql.sqlite import SQLiteStatements
from tests.servers.fixtures_databases import Connect
from tests.stores.databases import (
    KINDS,
    ME,
    YOU,
    alias_of,
    at,
    close,
    expire,
    in_threads,
    row,
    store_of,
    wait_until,
)


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("kind", [*KINDS, "old sqlite", "generic postgresql"])
def test_time_zones_do_not_move_the_end(kind: str, use_tz: bool, connect: Connect) -> None:
    zones = {"postgresql": "SET TIME ZONE 'Asia/Kolkata'", "mariadb": "SET time_zone = '-09:30'"}
    with override_settings(USE_TZ=use_tz, TIME_ZONE="America/New_York"):
        here, there = store_of(kind, connect), store_of(kind, connect, "locks_there")
        if kind in zones:
            with connections[alias_of(there)].cursor() as cursor:
                cursor.execute(zones[kind])
        here.acquire("job", ME, 20, "me")
        assert there.acquire("job", YOU, 20, "you") is None
        lease = there.get("job")
        assert lease is not None
        assert 19 < lease.remaining <= 20
        assert abs(lease.expires_at - datetime.now(UTC) - timedelta(seconds=20)) < timedelta(seconds=2)
        assert row(there, "job").expires_at == lease.expires_at


def test_sqlite_clock_is_exact_at_every_millisecond(connect: Connect) -> None:
    sql = SQLiteStatements.now.replace("'now'", "%(at)s")
    with connections[connect("sqlite")].cursor() as cursor:
        for millisecond in range(1000):
            cursor.execute(f"SELECT {sql}", {"at": f"2026-03-29 01:59:59.{millisecond:03}"})
            assert cursor.fetchone() == (1774749599000000 + millisecond * 1000,)


@pytest.mark.parametrize("kind", KINDS)
def test_lease_ends_at_its_end_and_not_before(kind: str, connect: Connect) -> None:
    store = DatabaseStore("default", connect(kind))
    start, ttl = 1_774_749_599_123_000, 0.0405
    at(store, start)
    assert store.acquire("job", ME, ttl, "me") == start
    # SQLite's clock is cut to milliseconds: what it shows may be over by almost another one.
    last, over = (41_000, 42_000) if kind == "sqlite" else (40_499, 40_500)
    at(store, start + last)
    assert store.acquire("job", YOU, ttl, "you") is None
    assert store.get("job")
    assert store.prune(0) == 0
    at(store, start + over)
    assert store.get("job") is None
    assert list(store.leases()) == []
    assert store.renew([("job", ME, ttl)]) == set()
    assert store.renew([("job", ME, ttl), ("other", ME, ttl)]) == set()
    assert store.release("job", ME) is False
    assert store.acquire("job", YOU, ttl, "you") == start + 1
    assert store.release("job", YOU)
    assert store.acquire("job", ME, ttl, "me") == start + 2


@pytest.mark.parametrize("kind", KINDS)
def test_short_leases_never_overlap(kind: str, connect: Connect) -> None:
    store, ttl = DatabaseStore("default", connect(kind)), 0.0405
    grants: list[tuple[int, float, float]] = []
    stop = time.monotonic() + 1.2

    def crash_again_and_again(owner: str) -> None:
        while (asked := time.monotonic()) < stop:
            fence = store.acquire("job", owner, ttl, "")
            if fence:
                grants.append((fence, time.monotonic(), asked + ttl))
                owner = f"{int(owner, 16) + 16:032x}"

    in_threads(store, crash_again_and_again, [f"{n:032x}" for n in range(4)])
    grants.sort()
    assert len(grants) > 5
    assert len({fence for fence, _, _ in grants}) == len(grants)
    for (_, _, end), (_, start, _) in pairwise(grants):
        assert end <= start


def test_end_counts_from_the_write_on_postgresql(connect: Connect) -> None:
    store = DatabaseStore("default", connect("postgresql"))
    store.acquire("job", ME, 1, "me")
    expire(store, "job")
    with transaction.atomic(alias_of(store)):
        with connections[alias_of(store)].cursor() as cursor:
            cursor.execute("SELECT * FROM django_locks_lease FOR UPDATE")
        fences: list[int | None] = []
        waiter = threading.Thread(target=lambda: (fences.append(store.acquire("job", YOU, 1, "you")), close(store)))
        waiter.start()
        wait_until(lambda: waits_for_a_lock(connections[alias_of(store)]))
        time.sleep(0.4)
    waiter.join()
    lease = store.get("job")
    assert lease is not None
    assert fences == [lease.fence]
    assert lease.remaining > 0.7


def waits_for_a_lock(connection: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("kind", KINDS)
def test_fence_rises_over_a_prune_within_one_tick(kind: str, connect: Connect) -> None:
    store, start = DatabaseStore("default", connect(kind)), 1_774_749_599_123_000
    at(store, start)
    for fence in (start, start + 1):
        assert store.acquire("job", ME, 30, "me") == fence
        assert store.release("job", ME)
    assert store.prune(0) == 0
    at(store, start + 1000)
    assert store.prune(0) == 1
    assert store.acquire("job", ME, 30, "me") == start + 1000
