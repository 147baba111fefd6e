"""K20: what waits on one database engine fails at once, or deadlocks, on another."""

from __future__ import annotations

import time
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from django_locks.values import new_owner
from tests.crew import Crew, Member, Spec
from tests.scenarios.actors import LONG, store

ROUNDS = 200 if LONG else 30


def take_and_release(member: Member, name: str, rounds: int) -> list[tuple[str, int, float, float]]:
    """Return what was held: the key, the fence, from and to."""
    member.meet()
    if member.index == 8:
        return write_business_rows(member, rounds)
    if member.index > 8:
        member.meet()
        return []
    held, leases = [], store()
    for number in range(rounds):
        key, owner = f"{name}:{(member.index + number) % 4}", new_owner()
        fence = leases.acquire(key, owner, 60, "")
        if fence is not None:
            start = time.monotonic()
            time.sleep(0.001)
            held.append((key, fence, start, time.monotonic()))
            assert leases.release(key, owner) is True
    member.meet()
    return held


def write_business_rows(member: Member, rounds: int) -> list[Any]:
    connection = connections[str(store().location)]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS business (id INTEGER PRIMARY KEY, value INTEGER)")
    for number in range(rounds):
        with transaction.atomic(connection.alias), connection.cursor() as cursor:
            cursor.execute("INSERT INTO business (value) VALUES (%s)", [number])
            time.sleep(0.005)
        time.sleep(0.005)
    member.meet()
    return []


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_sqlite_never_says_that_it_is_locked(journal: str, connect: Any, tmp_path: Path, crew: Crew) -> None:
    """B081"""
    options = {"timeout": 5, "init_command": f"PRAGMA journal_mode={journal}"}
    alias = connect("sqlite", f"journal_{journal}", NAME=str(tmp_path / "locks.sqlite3"), OPTIONS=options)
    backend = "django_locks.stores.database.DatabaseStore"
    spec = Spec({"BACKEND": backend, "LOCATION": alias}, {alias: connections.settings[alias]})
    results = crew.run(spec, take_and_release, uuid.uuid4().hex, ROUNDS)
    held = sorted(hold for holds in results for hold in holds)
    assert len(held) > ROUNDS
    for (key, fence, _, end), (other_key, other_fence, start, _) in pairwise(held):
        assert key != other_key or (fence < other_fence and end <= start)


def take_renew_and_release(member: Member, name: str, rounds: int) -> int:
    leases, done = store(), 0
    member.meet()
    if member.index == 10:
        while member.barrier.n_waiting < member.size - 1:  # the others are still at work
            done += leases.prune(0)
    for number in range(rounds if member.index < 10 else 0):
        key, owner = f"{name}:{(member.index + number) % 5}", new_owner()
        if leases.acquire(key, owner, 60, "") is None:
            continue
        done += 1
        assert leases.renew([(key, owner, 60.0)]) == {key}
        assert leases.release(key, owner) is True
        lease = leases.get(key)
        assert lease is None or lease.owner != owner
    member.meet()
    return done


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_takers_renewers_and_cleanup_never_see_a_deadlock(kind: str, spec_of: Any, crew: Crew) -> None:
    """B082"""
    results = crew.run(spec_of(kind), take_renew_and_release, uuid.uuid4().hex, 200)
    assert sum(results[:10]) > 200
    assert results[10] > 0, "the cleanup found nothing to forget"
