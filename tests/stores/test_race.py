"""Mutual exclusion on real servers: processes that race, are killed, stall and come back."""

from __future__ import annotations

import os
import random
import signal
import time
import uuid
from itertools import pairwise
from typing import Any, NamedTuple

from django_locks import conf, locks
from django_locks.stores.base import BaseStore
from django_locks.values import new_owner
from tests.crew import Crew, Member, Spec, process

LONG = os.environ.get("LONG") == "1"
ROUNDS = 1000 if LONG else 200
SECONDS = 30.0 if LONG else 2.0


def store_of_this_process() -> BaseStore:
    return conf.entries("default").store


# Who comes first


def race(member: Member, name: str, rounds: int) -> list[int | None]:
    store, fences = store_of_this_process(), []
    store.get(name)  # connects
    for number in range(rounds):
        member.meet()
        fences.append(store.acquire(f"{name}:{number}", new_owner(), 60, f"member {member.index}"))
    return fences


def race_for_one_name(member: Member, name: str, rounds: int) -> list[int | None]:
    store, fences = store_of_this_process(), []
    for _ in range(rounds):
        owner = new_owner()
        member.meet()
        fence = store.acquire(name, owner, 60, f"member {member.index}")
        member.meet()
        if fence is not None:
            assert store.release(name, owner)
        fences.append(fence)
    return fences


def winners(rounds: list[tuple[int | None, ...]]) -> list[list[int]]:
    return [[fence for fence in fences if fence is not None] for fences in rounds]


def test_race_for_names_that_were_never_taken_has_exactly_one_winner(shared_store: Spec, crew: Crew) -> None:
    results = crew.run(shared_store, race, uuid.uuid4().hex, ROUNDS)
    assert {len(found) for found in winners(list(zip(*results, strict=True)))} == {1}


def test_race_for_a_name_given_back_has_exactly_one_winner_with_a_higher_fence(shared_store: Spec, crew: Crew) -> None:
    results = crew.run(shared_store, race_for_one_name, uuid.uuid4().hex, ROUNDS // 2)
    rounds = winners(list(zip(*results, strict=True)))
    assert {len(found) for found in rounds} == {1}
    assert all(before < after for (before,), (after,) in pairwise(rounds))


# A killed holder


def take_and_hang(pipe: Any, name: str, ttl: float) -> None:
    sent = time.monotonic()
    guard = locks.acquire(name, ttl=ttl, renew=False)
    pipe.send((sent, time.monotonic(), guard.fence))
    time.sleep(60)


def test_killed_holder_is_followed_after_its_ttl_and_not_before_with_a_higher_fence(shared_store: Spec) -> None:
    name, ttl = uuid.uuid4().hex, 0.6
    with process(shared_store, take_and_hang, name, ttl) as holder:
        sent, replied, fence = holder.pipe.recv()  # type: ignore[attr-defined]
        os.kill(holder.pid, signal.SIGKILL)
        while (successor := locks.try_acquire(name)) is None:
            assert time.monotonic() < replied + ttl + 2, "the lease outlives its TTL"
            time.sleep(0.01)
        now = time.monotonic()
    successor.release()
    assert sent + ttl <= now
    assert successor.fence > fence


# Many short leases


class Belief(NamedTuple):
    """A holder takes the lock to be its own from a reply until the TTL after its request, or until it gives it back."""

    fence: int
    sent: float
    start: float
    end: float


TTLS = (0.04, 0.06)


def live_dangerously(member: Member, name: str, crowd: int, seconds: float) -> list[Belief]:
    """Take the lock again and again; crash, stall, renew or give it back, as chance will have it."""
    member.meet()
    if member.index >= crowd:
        return []
    store, chance, beliefs = store_of_this_process(), random.Random(member.index), []
    stop = time.monotonic() + seconds
    while (sent := time.monotonic()) < stop:
        owner, ttl = new_owner(), chance.uniform(*TTLS)
        fence = store.acquire(name, owner, ttl, f"member {member.index}")
        if fence is None:
            time.sleep(chance.uniform(0, 0.01))
            continue
        beliefs += live(store, name, owner, Belief(fence, sent, time.monotonic(), sent + ttl), ttl, chance)
    return beliefs


def live(store: BaseStore, name: str, owner: str, belief: Belief, ttl: float, chance: random.Random) -> list[Belief]:
    beliefs, fate = [belief], chance.random()
    while chance.random() < 0.5:
        time.sleep(ttl / 3)
        beliefs += renewed(store, name, owner, beliefs[-1].fence, ttl)
    if fate < 0.25:  # crashes
        return beliefs
    if fate < 0.5:  # stalls, and then goes on as if nothing had happened
        time.sleep(ttl * 1.5)
        beliefs += renewed(store, name, owner, beliefs[-1].fence, ttl)
    else:
        time.sleep(chance.uniform(0, ttl / 3))
    given_back = time.monotonic()
    store.release(name, owner)
    return [belief._replace(end=min(belief.end, given_back)) for belief in beliefs]


def renewed(store: BaseStore, name: str, owner: str, fence: int, ttl: float) -> list[Belief]:
    sent = time.monotonic()
    ours = store.renew([(name, owner, ttl)])
    return [Belief(fence, sent, time.monotonic(), sent + ttl)] if ours else []


def test_beliefs_of_holders_never_overlap_and_fences_rise(shared_store: Spec, crew: Crew) -> None:
    lives = crew.run(shared_store, live_dangerously, uuid.uuid4().hex, 8, SECONDS)
    by_fence: dict[int, list[Belief]] = {}
    owners: dict[int, set[int]] = {}
    for member, beliefs in enumerate(lives):
        for belief in beliefs:
            by_fence.setdefault(belief.fence, []).append(belief)
            owners.setdefault(belief.fence, set()).add(member)
    assert len(by_fence) > SECONDS * 3, "too few grants to say anything"
    assert {len(members) for members in owners.values()} == {1}, "one fence for two grants"
    latest = 0.0
    for fence in sorted(by_fence):
        sincere = [belief for belief in by_fence[fence] if belief.start < belief.end]
        for belief in sincere:
            assert latest <= belief.start, f"two believe that they hold the lock, {latest - belief.start:.6f} s long"
        latest = max([latest, *(belief.end for belief in sincere)])
    grants = sorted((beliefs[0].start, fence) for fence, beliefs in by_fence.items())
    requests = {fence: beliefs[0].sent for fence, beliefs in by_fence.items()}
    for replied, fence in grants:
        assert all(fence < later for later, sent in requests.items() if sent > replied), "a later grant, a lower fence"
