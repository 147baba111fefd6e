"""K24: a store made for tests and single processes is used beyond its means, or leaks."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks

from django_locks import clock, locks
from django_locks.values import new_owner
from tests.crew import Crew, Member, Spec
from tests.scenarios.actors import store


@pytest.mark.usefixtures("memory_locks")
def test_live_lease_is_never_dropped_and_ended_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """B096"""
    table = store()._table  # type: ignore[attr-defined]
    with locks.lock("lock:job", ttl=10_000):
        for number in range(100_000):
            owner = new_owner()
            store().acquire(f"passing:{number}", owner, 60, "")
            store().release(f"passing:{number}", owner)
        assert len(table.leases) == 1
        for number in range(20_000):
            store().acquire(f"held:{number}", new_owner(), 60, "")
        assert locks.try_acquire("lock:job") is None
        assert len(table.leases) == 20_001
        real = clock.now
        monkeypatch.setattr(clock, "now", lambda: real() + 61)
        for number in range(25_000):
            owner = new_owner()
            store().acquire(f"later:{number}", owner, 60, "")
            store().release(f"later:{number}", owner)
        assert len(table.leases) < 10
        assert locks.get("lock:job")
        monkeypatch.undo()


@pytest.mark.usefixtures("memory_locks")
def test_deployed_default_store_in_memory_is_an_error_of_the_checks(settings: Any) -> None:
    """B098"""
    (message,) = run_checks(tags=["django_locks"], include_deployment_checks=True)
    assert message.id == "django_locks.E007"
    assert "'default'" in message.msg
    assert "memory of one process" in message.msg
    assert message.hint
    assert run_checks(tags=["django_locks"]) == []
    settings.SILENCED_SYSTEM_CHECKS = ["django_locks.E007"]
    assert message.is_silenced()


def take(member: Member, name: str) -> bool:
    guard = locks.acquire(name)
    member.meet()
    return guard.release()


def test_store_in_memory_excludes_nobody_in_another_process(spec_of: Any, crew: Crew, name: str) -> None:
    """B098"""
    spec: Spec = spec_of("memory")
    assert crew.run(spec, take, name) == [True] * crew.size
