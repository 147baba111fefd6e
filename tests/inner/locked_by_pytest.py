"""The same by pytest-django: run by `tests.test_testcases` in processes of their own, on each database."""

from __future__ import annotations

import time

import pytest
from django.contrib.auth.models import Group

from django_locks import SKIPPED, locks
from tests.inner.code import fenced_job, job


def use_locks() -> None:
    assert list(locks.leases()) == []
    assert Group.objects.count() == 0
    assert job("a") == "a"
    with locks.lock("job", ttl=2) as guard:
        assert job("b") is SKIPPED
        time.sleep(0.9)
        guard.check()
    fenced_job("c")
    assert Group.objects.count() == 2


@pytest.mark.parametrize("time_around", [1, 2])
def test_db(db: None, time_around: int) -> None:
    use_locks()


@pytest.mark.parametrize("time_around", [1, 2])
def test_transactional_db(transactional_db: None, time_around: int) -> None:
    use_locks()
