"""The admin's pages and actions when a store fails in the middle of it, or when too much is asked at once."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.urls import reverse

from django_locks import clock, locks
from django_locks.conf import entries
from django_locks.history import EXPIRED
from django_locks.models import Lease, Run
from django_locks.places import key_of
from tests.conftest import DATABASE, MEMORY
from tests.faults import failing

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _stores(settings):
    memory = {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex}
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HISTORY": 3600}, "here": memory}


@pytest.fixture
def guard():
    guard = locks.using("here").acquire("job")
    yield guard
    guard.release()


def said(client, **data):
    """Post it, and return the messages, by their level, of an answer that leads back to the list."""
    url = reverse("admin:django_locks_lease_changelist")
    response = client.post(url, data)
    assert (response.status_code, response.url) == (302, url)
    return [(message.level_tag, str(message)) for message in get_messages(response.wsgi_request)]


def test_store_that_is_down_when_the_locks_are_chosen_is_a_message(admin_client, guard):
    with failing(entries("here").store, "get"):
        [(level, text)] = said(admin_client, action="break_lease", _selected_action=key_of("here", "job"))
    assert (level, "connection reset" in text) == ("error", True)
    guard.check()


def test_store_that_is_down_when_the_break_is_confirmed_leaves_the_others_to_be_broken(admin_client, guard):
    other = locks.acquire("other")
    leases = [f"{guard.fence}:{key_of('here', 'job')}", f"{other.fence}:{key_of('default', 'other')}"]
    with failing(entries("here").store, "get"):
        (first, reason), (second, _) = said(admin_client, action="break_lease", confirmed="1", lease=leases)
    assert (first, "connection reset" in reason, second) == ("error", True, "success")
    assert [entry.object_repr for entry in LogEntry.objects.all()] == ["other"]
    assert locks.using("here").get("job").fence == guard.fence
    assert locks.get("other") is None
    assert other.release() is False


def test_store_that_is_down_when_old_locks_are_to_be_forgotten_is_a_message(admin_client):
    locks.acquire("old").release()
    with failing(entries("default").store, "prune"):
        [(level, text)] = said(admin_client, action="prune_locks", confirmed="1", days="0")
    assert (level, "connection reset" in text) == ("error", True)
    assert Lease.objects.filter(name="old").exists()


def test_more_locks_than_a_page_has_are_not_broken_at_once(admin_client, guard):
    lease = f"{guard.fence}:{key_of('here', 'job')}"
    data = {"action": "break_lease", "confirmed": "1", "lease": [lease] * 101}
    assert admin_client.post(reverse("admin:django_locks_lease_changelist"), data).status_code == 400
    guard.check()


def test_run_whose_end_nobody_recorded_is_shown_as_expired_and_not_written(admin_client):
    with locks.lock("job"):
        pass
    Run.objects.update(outcome="", ended=None, started=clock.wall() - timedelta(hours=1))
    response = admin_client.get(reverse("admin:django_locks_lease_change", args=[key_of("default", "job")]))
    [run] = response.context["runs"]
    assert run.outcome == EXPIRED
    assert 'class="locks-run locks-run-expired"' in response.content.decode()
    assert Run.objects.get().outcome == ""
