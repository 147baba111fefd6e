"""Read, add one, write: what two holders lose if one of them begins before the other's commit."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction

from django_locks import LeaseLost, LockNotAcquired, StoreUnavailable, locks
from tests.crew import Crew, Member, Spec

LONG = os.environ.get("LONG") == "1"
HOLDERS = 8
ROUNDS = 50 if LONG else 20


def make_steps(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS steps")
        cursor.execute("CREATE TABLE steps (n integer)")


def last_step(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT COALESCE(MAX(n), 0) FROM steps")
        return int(cursor.fetchone()[0])


def add_step(alias: str, n: int) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO steps VALUES (%s)", [n])


def lost_updates(alias: str) -> int:
    """How many steps were made from a state that another one had already been made from."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT n FROM steps")
        steps = [n for (n,) in cursor.fetchall()]
    return len(steps) - len(set(steps))


# The release and the commit


def step_inside(alias: str) -> None:
    with transaction.atomic(using=alias), locks.lock("steps", wait=60):
        add_step(alias, last_step(alias) + 1)


def step_outside(alias: str) -> None:
    with locks.lock("steps", wait=60), transaction.atomic(using=alias):
        add_step(alias, last_step(alias) + 1)


def step_released_too_early(alias: str) -> None:
    with transaction.atomic(using=alias), locks.lock("steps", wait=60) as guard:
        add_step(alias, last_step(alias) + 1)
        guard.release()
        time.sleep(0.005)


def step_many(member: Member, step: Any, alias: str) -> None:
    member.meet()
    for _ in range(ROUNDS if member.index < HOLDERS else 0):
        step(alias)
    connections.close_all()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("step", [step_inside, step_outside])
def test_no_update_is_lost(kind: str, step: Any, spec_of: Any, crew: Crew) -> None:
    spec: Spec = spec_of(kind)
    alias = spec.locks["LOCATION"]
    make_steps(alias)
    crew.run(spec, step_many, step, alias)
    assert last_step(alias) == HOLDERS * ROUNDS
    assert lost_updates(alias) == 0


def test_release_before_the_commit_loses_updates(spec_of: Any, crew: Crew) -> None:
    spec: Spec = spec_of("postgresql")
    alias = spec.locks["LOCATION"]
    make_steps(alias)
    crew.run(spec, step_many, step_released_too_early, alias)
    assert lost_updates(alias) > 0


# Holders that outlive their leases, and whose clocks do not tell them

LEASES = ["memory", "redis", "same"]
DATA = {
    "postgresql": {},
    "postgresql repeatable read": {"isolation_level": 3},
    "postgresql serializable": {"isolation_level": 4},
    "mariadb": {},
    "mariadb repeatable read": {"isolation_level": "repeatable read"},
    "mariadb serializable": {"isolation_level": "serializable"},
    "sqlite": {"timeout": 20},
}
LATE_HOLDERS = 6
LATE_ROUNDS = 34 if LONG else 5
TTL = 0.12


def fenced(guard: Any, alias: str) -> AbstractContextManager[None]:
    block: AbstractContextManager[None] = guard.atomic(using=alias)
    return block


def unfenced(guard: Any, alias: str) -> AbstractContextManager[None]:
    return transaction.atomic(using=alias)


def step_late(alias: str, block: Any, rounds: int) -> dict[str, int]:
    """Make steps with pauses of up to one and a half TTLs anywhere; count how the tries have ended."""
    ends: dict[str, int] = {}
    for _ in range(rounds):
        try:
            late_step(alias, block)
        except (LeaseLost, DatabaseError, StoreUnavailable, LockNotAcquired) as error:
            end = type(error).__name__
        else:
            end = "committed"
        ends[end] = ends.get(end, 0) + 1
    connections.close_all()
    return ends


def late_step(alias: str, block: Any) -> None:
    guard = locks.acquire("steps", wait=20, ttl=TTL, renew=False)
    guard.deadline = float("inf")  # a clock that stands still
    try:
        pause()
        with block(guard, alias):
            pause()
            step = last_step(alias) + 1
            pause()
            add_step(alias, step)
            pause()
    finally:
        with suppress(StoreUnavailable):
            guard.release()


def pause() -> None:
    time.sleep(random.random() * TTL * 1.5 if random.random() < 0.3 else 0)


def late_member(member: Member, alias: str, block: Any) -> dict[str, int]:
    member.meet()
    return step_late(alias, block, LATE_ROUNDS if member.index < LATE_HOLDERS else 0)


def in_threads(alias: str, block: Any) -> list[dict[str, int]]:
    ends: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda: ends.append(step_late(alias, block, LATE_ROUNDS))) for _ in range(LATE_HOLDERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.fixture
def race(spec_of: Any, settings: Any, connect: Any, crew: Crew) -> Any:
    """Let late holders race for leases of that kind; return how their tries ended, and how many updates were lost."""

    def race(leases: str, data: str, block: Any) -> tuple[dict[str, int], int]:
        kind, options = data.split()[0], DATA[data]
        spec: Spec = spec_of(kind if leases == "same" else leases)
        options = {**({"charset": "utf8mb4"} if kind == "mariadb" else {}), **options}
        alias = connect(kind, "steps", OPTIONS=options)
        if leases == "same":
            spec.locks["LOCATION"] = alias
        settings.LOCKS = {"default": spec.locks}
        make_steps(alias)
        if leases == "memory":
            results = in_threads(alias, block)
        else:
            results = crew.run(Spec(spec.locks, {alias: connections.settings[alias]}), late_member, alias, block)
        ends = {end: sum(result.get(end, 0) for result in results) for result in results for end in result}
        return ends, lost_updates(alias)

    return race


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("leases", LEASES)
def test_late_holder_never_commits_over_its_successor(leases: str, data: str, race: Any) -> None:
    ends, lost = race(leases, data, fenced)
    assert lost == 0
    assert ends.get("committed", 0) > 0, ends


@pytest.mark.parametrize("leases", LEASES)
def test_late_holder_without_a_fence_does(leases: str, race: Any) -> None:
    _, lost = race(leases, "postgresql", unfenced)
    assert lost > 0
