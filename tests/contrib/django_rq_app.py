"""A django-rq job."""

from __future__ import annotations

from django_rq import job

from django_locks import locks, with_lock


@job
@with_lock("django-rq:{number}")
def decorated(number: int) -> bool:
    return locks.get(f"django-rq:{number}") is not None
