"""K30: asking who holds a lock races with its end; logs accuse the wrong party."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from django.core.management import call_command

from django_locks import SKIPPED, LockNotAcquired, locks, with_lock
from tests.faults import patched
from tests.scenarios.actors import held_elsewhere, store


@pytest.mark.usefixtures("any_store")
def test_holder_that_is_gone_when_asked_for_is_unknown_and_no_other_error(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B118"""
    caplog.set_level(logging.INFO, "django_locks")

    def gone_by_now(real: Any, key: str) -> Any:
        a.release()
        return real(key)

    with held_elsewhere(name) as a, patched(store(), "get", gone_by_now):
        with pytest.raises(LockNotAcquired, match="holder unknown") as caught:
            locks.acquire(name)
        assert caught.value.lease is None
    with held_elsewhere(name) as a, patched(store(), "get", gone_by_now):
        assert with_lock(name)(lambda: "ran")() is SKIPPED
    assert "holder unknown" in caplog.text
    with held_elsewhere(name) as a, patched(store(), "get", gone_by_now):
        with pytest.raises(SystemExit) as ended:
            call_command("locks", "show", name, stdout=io.StringIO())
        assert ended.value.code == 1


@pytest.mark.usefixtures("any_store")
def test_contention_is_no_error_in_any_log(
    name: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """B120"""
    caplog.set_level(logging.DEBUG)
    is_postgresql = "[postgresql]" in request.node.name
    log = request.getfixturevalue("postgresql").log if is_postgresql else None
    before = log.stat().st_size if log else 0
    with held_elsewhere(name) as a:
        for _ in range(100):
            assert locks.try_acquire(name) is None
        assert with_lock(name, wait=0.1)(lambda: "ran")() is SKIPPED
    ours = [record for record in caplog.records if getattr(record, "lock", None) == name]
    assert [record.levelno for record in ours] == [logging.INFO]
    assert a.holder in ours[0].message
    assert max(record.levelno for record in caplog.records if "asyncio" not in record.name) <= logging.INFO
    assert not any(a.owner in str(vars(record)) for record in ours)
    assert not any("://" in record.getMessage() for record in ours)
    if log:
        assert "ERROR" not in log.read_text()[before:]
