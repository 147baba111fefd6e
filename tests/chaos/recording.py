"""Write down what a store is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections

from django_locks.stores.base import RELEASED, BaseStore, Claim

from .history import FAILED, Recorder


def record_calls(store: Any, recorder: Recorder) -> None:
    """Let all calls of the store be recorded from now on."""
    acquire, renew, release, lock_row = store.acquire, store.renew, store.release, store.lock_row
    aacquire, arelease = store.aacquire, store.arelease

    def recorded_acquire(name: str, owner: str, ttl: float, holder: str) -> int | None:
        with _recorded(recorder, "acquire", (name, owner, ttl)) as answers:
            answers[name] = acquire(name, owner, ttl, holder)
        return answers[name]

    def recorded_renew(leases: Sequence[Claim]) -> set[str]:
        with _recorded(recorder, "renew", *leases) as answers:
            ours: set[str] = renew(leases)
            answers.update((name, name in ours) for name, _, _ in leases)
        return ours

    def recorded_release(name: str, owner: str, hold_for: float = 0.0, outcome: str = RELEASED) -> bool:
        with _recorded(recorder, "release", (name, owner, hold_for)) as answers:
            answers[name] = release(name, owner, hold_for, outcome)
        return answers[name]

    def recorded_lock_row(alias: str, claim: Claim) -> bool:
        if connections[alias].vendor != "sqlite":
            return bool(lock_row(alias, claim))
        with _recorded(recorder, "renew", claim) as answers:  # so it is there
            answers[claim[0]] = lock_row(alias, claim)
        return answers[claim[0]]

    async def recorded_aacquire(name: str, owner: str, ttl: float, holder: str) -> int | None:
        with _recorded(recorder, "acquire", (name, owner, ttl)) as answers:
            answers[name] = await aacquire(name, owner, ttl, holder)
        return answers[name]

    async def recorded_arelease(name: str, owner: str, hold_for: float = 0.0, outcome: str = RELEASED) -> bool:
        with _recorded(recorder, "release", (name, owner, hold_for)) as answers:
            answers[name] = await arelease(name, owner, hold_for, outcome)
        return answers[name]

    store.acquire, store.renew = recorded_acquire, recorded_renew
    store.release, store.lock_row = recorded_release, recorded_lock_row
    if type(store).aacquire is not BaseStore.aacquire:  # which asks those above
        store.aacquire, store.arelease = recorded_aacquire, recorded_arelease


@contextmanager
def _recorded(recorder: Recorder, verb: str, *claims: Claim) -> Iterator[dict[str, Any]]:
    calls = {name: recorder.call(verb=verb, name=name, owner=short(owner), ttl=ttl) for name, owner, ttl in claims}
    answers = dict.fromkeys(calls, FAILED)
    try:
        yield answers
    finally:
        for name, call in calls.items():
            recorder.answer(call, answers[name])


def short(owner: str) -> str:
    """Return as much of the secret as tells it from others."""
    return owner[:12]
