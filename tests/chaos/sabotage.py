"""Ways to break the product in a worker, so that the harness can be seen to notice."""

from __future__ import annotations

import math
from typing import Any


def owner() -> None:
    """Renew and release whatever lease there is, whoever has it."""
    from django_locks.stores import redis_wire

    for script in (redis_wire.RENEW, redis_wire.RELEASE):
        compared = script.source.decode()
        anyone = compared.replace(" and string.sub(held, 1, #owner) == owner", "")
        anyone = anyone.replace(" or string.sub(held, 1, #ARGV[1]) ~= ARGV[1]", "")
        assert anyone != compared
        script.__init__(anyone)  # type: ignore[misc]


def deadline() -> None:
    """Believe in a lease until the store denies it."""
    from django_locks.guard import LockGuard

    count = LockGuard._count

    def _count(guard: LockGuard, *args: Any) -> None:
        count(guard, *args)
        guard.deadline = math.inf

    LockGuard._count = _count  # type: ignore[method-assign]


def release() -> None:
    """Release on leaving the block, even before the commit."""
    from django_locks import guard

    guard.after_transactions = lambda call: False  # type: ignore[assignment]


def fence() -> None:
    """Commit whether or not a newer holder has come."""
    from django.db import transaction

    from django_locks import guard

    guard.fenced_atomic = lambda guard, using: transaction.atomic(using=using)  # type: ignore[assignment]


WAYS = {way.__name__: way for way in (owner, deadline, release, fence)}
