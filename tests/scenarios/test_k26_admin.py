"""K26: a person frees a lock that is in use, or tries to without the right to. (Escaping: tests/test_admin.py.)"""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse

from django_locks import LocksService, locks
from django_locks.admin_actions import ACTIONS, PRUNE
from django_locks.models import Lease
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


STAFF: dict[str, list[str] | None] = {
    "nobody": None,
    "no permission": [],
    "view": ["view_lease"],
    "change and delete": ["view_lease", "add_lease", "change_lease", "delete_lease"],
}


def client_of(codenames: list[str] | None, **options: Any) -> Client:
    """Return the browser of staff with these permissions on leases, also such as Django makes for other models."""
    client = Client(**options)
    if codenames is None:
        return client
    kind = ContentType.objects.get_for_model(Lease)
    user = User.objects.create_user("eve", is_staff=True)
    for codename in codenames:
        permission, _ = Permission.objects.get_or_create(content_type=kind, codename=codename)
        user.user_permissions.add(permission)
    client.force_login(user)
    return client


def urls_of(name: str) -> list[str]:
    key = key_of("default", name)
    views = [("changelist", []), ("add", []), *((view, [key]) for view in ("change", "delete", "history"))]
    return [reverse(f"admin:django_locks_lease_{view}", args=args) for view, args in views]


def rows() -> list[tuple[Any, ...]]:
    return list(Lease.objects.order_by("name").values_list())


@pytest.mark.django_db
@pytest.mark.parametrize("who", STAFF)
def test_who_may_not_changes_nothing_by_any_page_and_any_request(
    who: str, name: str, settings: Any, spec_of: Any
) -> None:
    """B104"""
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore"}}
    guard = locks.acquire(name)
    lease = {"lease": f"{guard.fence}:{key_of('default', name)}", "_selected_action": key_of("default", name)}
    more = {"seconds": "9", "days": "0", "until": "2030-01-01T00:00", "post": "yes", "confirmed": "1", **lease}
    client, before = client_of(STAFF[who]), rows()
    for url in urls_of(name):
        for action in [*ACTIONS, PRUNE, "delete_selected"]:
            for data in ({"action": action, **lease}, {"action": action, **more}):
                answers = client.get(url, data).status_code, client.post(url, data).status_code
                assert answers[0] in {200, 302, 403}, url
                # 302 leads who is not logged in to the login; 400 is no action at all
                fine = {302} if who == "nobody" else {200, 403} if url.endswith("/history/") else {400, 403}
                assert answers[1] in fine, (url, action)
    assert rows() == before
    assert not LogEntry.objects.exists()
    assert guard.release() is True


@pytest.mark.django_db
def test_who_may_changes_nothing_by_get_or_without_a_token(name: str, settings: Any) -> None:
    """B104"""
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore"}}
    guard = locks.acquire(name)
    data = {"lease": f"{guard.fence}:{key_of('default', name)}", "confirmed": "1", "seconds": "9", "days": "0"}
    client = client_of(["view_lease", "break_lease", "pause_lease"], enforce_csrf_checks=True)
    before = rows()
    for url in urls_of(name):
        for action in [*ACTIONS, PRUNE]:
            client.get(url, {"action": action, **data})
            assert client.post(url, {"action": action, **data}).status_code == 403, url
    assert rows() == before
    assert guard.release() is True


@pytest.mark.django_db
@pytest.mark.parametrize("extra", ["next", "_changelist_filters", "_to_field", "_popup", "return_to", "REQUEST_URI"])
def test_no_request_leads_to_another_site(extra: str, name: str, settings: Any, admin_client: Any) -> None:
    """B104"""
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore"}}
    settings.ALLOWED_HOSTS = ["testserver"]
    url = reverse("admin:django_locks_lease_changelist")
    for action in [*ACTIONS, PRUNE]:
        guard = locks.acquire(name)
        lease = f"{guard.fence}:{key_of('default', name)}"
        data = {"action": action, "confirmed": "1", "lease": lease, "days": "9", "seconds": "9"}
        data |= {"until": "2030-01-01T00:00", extra: "//evil.example/"}
        headers = {"referer": "https://evil.example/", "x-forwarded-host": "evil.example"}
        response = admin_client.post(f"{url}?{extra}=//evil.example/", data, headers=headers)
        assert response.status_code == 302, response.content
        assert response["Location"] == url
        guard.release()
