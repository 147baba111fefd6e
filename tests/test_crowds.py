"""Many waiters of one name, in several processes: all are served, as often as one another, and cost nothing idle."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.db import connections

from django_locks import locks
from tests.crew import Crew, Member, Spec
from tests.test_waiting import queue_of, until

PROCESSES, THREADS = 4, 25


@pytest.fixture(scope="module")
def four() -> Iterator[Crew]:
    crew = Crew(PROCESSES)
    yield crew
    crew.close()


def wait_in_threads(member: Member, held: float) -> list[tuple[float, float]]:
    """Return when each thread was granted the name, and when it gave it back. Clocks are the machine's."""
    grants: list[tuple[float, float]] = []

    def wait() -> None:
        with locks.lock("x", wait=60, ttl=60):
            granted = time.monotonic()
            time.sleep(0.002)
            grants.append((granted, time.monotonic()))
        connections.close_all()

    threads = [threading.Thread(target=wait) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    until(lambda: queue_of("x") == THREADS)
    member.meet()
    time.sleep(held)
    for thread in threads:
        thread.join()
    return grants


def test_hundred_waiters_in_four_processes(four: Crew, spec_of: Any, settings: Any) -> None:
    spec: Spec = spec_of("redis")
    settings.LOCKS = {"default": spec.locks}
    asked: list[float] = []

    def look_on() -> None:
        """Count what the server is asked in two quiet seconds, then free the name."""
        with redis.Redis.from_url(spec.locks["LOCATION"]) as client:
            until(lambda: client.pubsub_numsub(channel)[0][1] == PROCESSES)
            time.sleep(0.5)
            before = client.info("stats")["total_commands_processed"]
            time.sleep(2)
            asked.append((client.info("stats")["total_commands_processed"] - before) / 2)
        guard.release()

    guard = locks.acquire("x", ttl=60)
    channel = guard.store._wire.channel("x")  # type: ignore[attr-defined]
    onlooker = threading.Thread(target=look_on)
    onlooker.start()
    grants = sorted(grant for granted in four.run(spec, wait_in_threads, 0.0) for grant in granted)
    onlooker.join()
    assert len(grants) == PROCESSES * THREADS
    assert asked[0] <= 20
    hand_offs = [grant[0] - before[1] for before, grant in itertools.pairwise(grants)]
    assert min(hand_offs) > 0, "two held it at once"
    assert statistics.quantiles(hand_offs, n=20)[-1] <= 0.030


def take_turns(member: Member, seconds: float, most: int) -> list[int]:
    """Take the name again and again in some threads of each process; return how often each got it."""
    counts: list[int] = []
    member.meet()
    until_then = time.monotonic() + seconds

    def take() -> None:
        count = 0
        while time.monotonic() < until_then:
            with locks.lock("x", wait=60):
                time.sleep(0.002)
                count += 1
        counts.append(count)
        connections.close_all()

    threads = [threading.Thread(target=take) for _ in range(most if member.index < 2 else most - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def jain_index(counts: list[int]) -> float:
    """Return 1 if all have got the same, 1/n if one has got it all (Jain, Chiu, Hawe 1984)."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


def test_jain_index() -> None:
    assert jain_index([5, 5, 5, 5]) == 1
    assert jain_index([20, 0, 0, 0]) == 0.25


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_ten_waiters_get_as_much_as_one_another(kind: str, four: Crew, spec_of: Any) -> None:
    spec: Spec = spec_of(kind)
    counts = [count for turns in four.run(spec, take_turns, 4.0, 3) for count in turns]
    assert len(counts) == 10
    assert jain_index(counts) >= 0.9, counts
