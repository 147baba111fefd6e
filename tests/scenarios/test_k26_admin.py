"""K26: a person frees a lock that is in use. (Escaping and permissions: tests/test_admin.py.)"""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_locks import LocksService, locks
from django_locks.places import key_of
from tests.crew import Spec
from tests.scenarios.actors import eventually


def break_it(client: Any, name: str) -> str:
    """Break the lease by the admin's own pages, and return what they said."""
    url = reverse("admin:django_locks_lease_changelist")
    key = key_of("default", name)
    asked = client.post(url, {"action": "break_lease", "_selected_action": [key]}).content.decode()
    lease = f"{locks.get(name).fence}:{key}"
    data = {"action": "break_lease", "confirmed": "1", "lease": lease, "reason": "hung"}
    assert f'value="{lease}"' in asked
    return asked + client.post(url, data, follow=True).content.decode()


def survives(b: Any, a: Any, name: str) -> None:
    eventually(lambda: a.lost, within=0.3 + 0.7)
    time.sleep(0.4)  # more than a renewal interval
    assert a.release() is False
    assert locks.get(name).owner == b.owner
    assert b.fence > a.fence
    assert b.release() is True
    time.sleep(0.4)
    assert locks.get(name) is None


@pytest.mark.django_db
@pytest.mark.usefixtures("database_store")
def test_lease_broken_in_the_admin_is_lost_and_never_comes_back(name: str, admin_client: Any) -> None:
    """B107"""
    a = locks.acquire(name, ttl=0.9)
    said = break_it(admin_client, name)
    b = locks.acquire(name, ttl=30)
    assert "may be at work" in said
    assert LogEntry.objects.filter(object_repr=name).count() == 1
    survives(b, a, name)


@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster", "memory"])
def test_lease_broken_by_force_is_lost_and_never_comes_back(kind: str, spec_of: Any, settings: Any, name: str) -> None:
    """B107"""
    spec: Spec = spec_of(kind)
    settings.LOCKS = {"default": spec.locks, "second": spec.locks}
    second: LocksService = locks.using("second")
    a = locks.acquire(name, ttl=0.9)
    assert second.force_release(name) is True
    b = second.acquire(name, ttl=30)
    survives(b, a, name)
