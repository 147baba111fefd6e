"""K25: records grow without bound, or the cleaner removes what is alive or slows everything down."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from django.db import connections

from django_locks import locks
from django_locks.values import new_owner
from tests.crew import Spec, process
from tests.scenarios.actors import LONG, store

MANY = 100_000 if LONG else 1000


def residue(spec: Spec, name: str) -> int:
    if "MemoryStore" in spec.locks["BACKEND"]:
        return len(store()._table.leases)  # type: ignore[attr-defined]
    if "DatabaseStore" in spec.locks["BACKEND"]:
        from django_locks.models import Lease

        return Lease.objects.using(spec.locks["LOCATION"]).filter(name__startswith=name).count()
    location, left = spec.locks["LOCATION"], 0
    for url in location if isinstance(location, list) else [location]:
        with redis.Redis.from_url(url) as client:
            left += len(client.keys(f"*{name}*"))
            left += sum(client.zcard(key) for key in client.keys("*:index"))
            assert len(client.keys("*:fence")) <= 64
    return left


def test_distinct_names_leave_nothing_after_the_cleanup(any_store: Spec, name: str) -> None:
    """B099"""
    if "Redis" in any_store.locks["BACKEND"]:
        for url in any_store.locks["LOCATION"] if "OPTIONS" in any_store.locks else [any_store.locks["LOCATION"]]:
            with redis.Redis.from_url(url) as client:
                client.flushall()
    leases = store()
    for number in range(MANY):
        owner = new_owner()
        leases.acquire(f"{name}:{number}", owner, 0.05, "")
        if number % 2:
            leases.release(f"{name}:{number}", owner)
    with locks.lock(f"{name}:alive"):
        time.sleep(0.1)
        leases.prune(0)
        assert locks.get(f"{name}:alive") is not None
    time.sleep(0.01)
    leases.prune(0)
    assert residue(any_store, name) == 0


ROWS = 1_000_000 if LONG else 50_000

FILL = """
INSERT INTO django_locks_lease (name, owner, holder, fence, acquired_at, expires_at, released_at, outcome)
{numbers} SELECT {text}, '', '', 1, 1, 1, NULL, '' FROM {table}"""

FILLS = {
    "sqlite": {
        "numbers": "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d)",
        "text": "'old:' || n",
        "table": "s",
    },
    "postgresql": {"numbers": "", "text": "'old:' || n", "table": "generate_series(1, %d) AS n"},
    "mysql": {"numbers": "", "text": "concat('old:', seq)", "table": "seq_1_to_%d"},
}


@pytest.mark.timeout(600)
def test_take_is_quick_beside_many_ended_leases_and_cleanup_works_in_batches(database_store: Spec, name: str) -> None:
    """B101"""
    connection = connections[database_store.locks["LOCATION"]]
    with connection.cursor() as cursor:
        cursor.execute(FILL.format(**FILLS[connection.vendor]) % ROWS)
        if connection.vendor == "postgresql":
            cursor.execute("ANALYZE django_locks_lease")
    for number in range(100):
        store().acquire(f"{name}:live:{number}", new_owner(), 600, "")
    took = []
    for number in range(1000 if LONG else 200):
        start = time.perf_counter()
        guard = locks.acquire(f"old:{number + 1}")
        took.append(time.perf_counter() - start)
        guard.release()
    percentile = 0.99 if LONG else 0.5  # beside other tests on two cores, the slowest say nothing
    assert sorted(took)[int(len(took) * percentile) - 1] < 0.05
    assert store().prune(1) >= ROWS - len(took)
    assert len(list(locks.leases(name))) == 100


@pytest.mark.parametrize("verb", ["ACQUIRE", "RENEW", "RENEW_ONE", "RELEASE", "GET"])
def test_no_verb_reads_the_whole_table_of_postgresql(verb: str, spec_of: Any) -> None:
    """B101"""
    from django_locks.stores.sql import base, postgresql

    connection = connections[spec_of("postgresql").locks["LOCATION"]]
    statements = postgresql.PostgreSQLStatements(connection)
    template = getattr(postgresql, verb, None) or getattr(base, verb)
    one = {"name": "n", "owner": "o", "holder": "h", "ttl": 1, "hold_for": 1, "outcome": ""}
    many = {"names": ["n"], "owners": ["o"], "ttls": [1]}
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("EXPLAIN " + statements._fill(template), {**one, **many})
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "Seq Scan on django_locks_lease" not in plan


def start(pipe: Any, name: str) -> None:
    pipe.send([lease.name for lease in locks.leases(name)])
    locks.acquire(f"{name}:own").release()


def test_process_that_starts_frees_nothing_of_others(shared_store: Spec, name: str) -> None:
    """B102"""
    with locks.lock(f"{name}:a") as a, locks.lock(f"{name}:b:17") as b:
        with process(shared_store, start, name) as newcomer:
            assert newcomer.pipe.recv() == [f"{name}:a", f"{name}:b:17"]  # type: ignore[attr-defined]
            newcomer.join(10)
        assert (a.lost, b.lost) == (False, False)
        assert (locks.get(f"{name}:a").owner, locks.get(f"{name}:b:17").owner) == (a.owner, b.owner)
