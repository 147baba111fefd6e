"""The admin's pages of several stores, of pauses and old locks, and how they are drawn."""

from __future__ import annotations

import copy
import re
import uuid
from datetime import timedelta

import django
import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.core import checks
from django.urls import resolve
from django.utils import timezone

from django_locks import clock, listing, locks, with_lock
from django_locks.admin import BaseLeaseAdmin, LeaseAdmin
from django_locks.models import Lease
from tests.admin_pages import change_url, client_of, confirm, confirmation, history_url, key, list_url, page, shown
from tests.conftest import DATABASE, MEMORY, REDIS

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _database_store(settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def viewer():
    return client_of("view_lease")


@pytest.fixture
def breaker():
    return client_of("view_lease", "break_lease")


@pytest.fixture
def held():
    """Take locks that stay taken to the end of the test, and are given back then."""
    guards = []

    def take(name, **terms):
        guards.append(locks.acquire(name, **terms))
        return guards[-1]

    yield take
    for guard in guards:
        guard.release()


def test_store_that_is_down_is_named_while_the_others_are_shown(settings, admin_client, held):
    dead = {"BACKEND": REDIS, "LOCATION": "redis://127.0.0.1:1/0"}
    settings.LOCKS = {"default": {"BACKEND": DATABASE}, "dead": dead}
    held("busy")
    response = admin_client.get(list_url())
    assert shown(response) == ["busy"]
    assert list(response.context["found"].faults) == ["dead"]
    assert "1/2" in response.content.decode()


def test_way_to_a_page_is_shown_as_on_djangos_own_pages(breaker, held):
    held("job")
    kind = re.compile(r'<(\w+) class="breadcrumbs">')
    own = kind.findall(page(breaker, history_url("job")))
    pages = [page(breaker, list_url()), page(breaker, change_url("job")), confirmation(breaker, "job")]
    assert [kind.findall(html) for html in pages] == [own] * 3


@pytest.mark.skipif(django.VERSION < (6, 1), reason="its admin has nonces from 6.1 on")
def test_scripts_and_style_sheets_have_the_nonce_of_the_policy(breaker, held, settings):
    from django.utils.csp import CSP

    held("job")
    settings.SECURE_CSP = {"default-src": [CSP.NONE], "script-src": [CSP.NONCE], "style-src": [CSP.NONCE]}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.csp.ContentSecurityPolicyMiddleware"]
    [templates] = copy.deepcopy(settings.TEMPLATES)
    templates["OPTIONS"]["context_processors"].append("django.template.context_processors.csp")
    settings.TEMPLATES = [templates]
    for html in (page(breaker, list_url()), page(breaker, change_url("job")), confirmation(breaker, "job")):
        tags = re.findall(r'<script[^>]*>|<link[^>]*rel="stylesheet"[^>]*>', html)
        assert [tag for tag in tags if "leases." in tag]
        assert [tag for tag in tags if "nonce=" not in tag and "application/json" not in tag] == []


@pytest.fixture
def everywhere(settings, spec_of):
    """Let ``LOCKS`` have a store of each kind."""
    redis = spec_of("redis").locks
    memory = {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex}
    settings.LOCKS = {
        "default": {"BACKEND": DATABASE},
        "fast": {**redis, "KEY_PREFIX": uuid.uuid4().hex, "HISTORY": 3600},
        "here": memory,
    }
    return {"fast": settings.LOCKS["fast"]["KEY_PREFIX"] + ":", "here": "", "default": ""}


def test_locks_of_every_store_are_on_one_page_and_can_be_broken(everywhere, breaker):
    guards = {alias: locks.using(alias).acquire(f"in {alias}") for alias in everywhere}
    response = breaker.get(list_url())
    assert {each["row"].alias for each in response.context["rows"]} == set(everywhere)
    assert "3/3" in response.content.decode()
    assert "you see this web process only" in response.content.decode()
    for alias, prefix in everywhere.items():
        stored = f"{prefix}in {alias}"
        assert shown(breaker.get(list_url(), {"store": alias})) == [stored]
        assert shown(breaker.get(list_url(), {"q": f"in {alias}"})) == [stored]
        assert shown(breaker.get(list_url(), {"q": f"in {alias}", "state": "paused"})) == []
        assert f"in {alias}" in page(breaker, change_url(stored, alias))
        confirm(breaker, confirmation(breaker, stored, alias=alias), reason="x")
        assert locks.using(alias).get(f"in {alias}") is None
        assert guards[alias].release() is False
    assert LogEntry.objects.count() == 3


def test_free_locks_of_a_store_that_forgets_them_are_those_of_its_history(everywhere, viewer):
    with locks.using("fast").lock("done"):
        pass
    response = viewer.get(list_url())
    (each,) = response.context["rows"]
    assert (each["row"].state, each["row"].outcome, each["row"].alias) == ("free", "released", "fast")
    assert ", released " in page(viewer, change_url(everywhere["fast"] + "done", "fast"))


def test_facets_count_the_states_of_all_stores(everywhere, viewer):
    guards = [locks.using(alias).acquire("busy") for alias in everywhere]
    locks.using("fast").pause("stopped", 60)
    locks.acquire("kept", at_least=60).release()
    locks.acquire("free").release()
    facets = viewer.get(list_url(), {"facets": "1"}).context["found"].facets
    assert facets == {"live": 5, "held": 3, "cooling": 1, "paused": 1, "free": 1}
    assert viewer.get(list_url(), {"facets": "1", "q": "bus"}).context["found"].facets["live"] == 3
    for guard in guards:
        guard.release()


def test_pages_go_over_all_stores_without_a_gap(everywhere, viewer, monkeypatch):
    monkeypatch.setattr(listing, "SIZE", 3)
    guards = [locks.using(alias).acquire(f"{alias} {number}") for alias in everywhere for number in range(2)]
    for number in range(4):
        locks.acquire(f"free {number}").release()
    seen, number = [], 1
    while True:
        response = viewer.get(list_url(), {"p": number})
        seen += shown(response)
        if "next" not in response.context["pages"]:
            break
        number += 1
    assert number == 4
    assert len(seen) == len(set(seen)) == 10
    assert all("free" in name for name in seen[6:])
    for guard in guards:
        guard.release()


def test_lock_is_paused_until_a_time_and_resumed(held):
    client = client_of("view_lease", "pause_lease")
    locks.acquire("cron:nightly").release()
    html = confirmation(client, "cron:nightly", action="pause_lock")
    assert 'type="datetime-local"' in html
    until = timezone.localtime() + timedelta(hours=2)
    response = confirm(client, html, until=f"{until:%Y-%m-%dT%H:%M}", note="deploying <b>")
    assert "is paused until" in response.content.decode()
    lease = locks.get("cron:nightly")
    assert (lease.state, lease.holder) == ("paused", "deploying <b>")
    assert 7000 < lease.remaining < 7300
    assert locks.try_acquire("cron:nightly") is None
    assert "deploying &lt;b&gt;" in page(client, change_url("cron:nightly"))
    confirm(client, confirmation(client, "cron:nightly", action="resume_lock"))
    locks.acquire("cron:nightly").release()
    assert [entry.change_message[:6] for entry in LogEntry.objects.order_by("pk")] == ["Paused", "Resume"]


@pytest.mark.parametrize("until", ["", "yesterday", "2001-01-01T00:00", "9999-01-01T00:00"])
def test_pause_without_a_future_moment_asks_again(until):
    client = client_of("view_lease", "pause_lease")
    locks.acquire("job").release()
    response = confirm(client, confirmation(client, "job", action="pause_lock"), until=until)
    assert 'class="locks-error"' in response.content.decode()
    assert locks.get("job") is None


def test_held_lock_is_not_paused(held):
    client = client_of("view_lease", "pause_lease")
    locks.acquire("job").release()
    html = confirmation(client, "job", action="pause_lock")
    guard = held("job")
    until = timezone.localtime() + timedelta(hours=2)
    assert "is held" in confirm(client, html, until=f"{until:%Y-%m-%dT%H:%M}").content.decode()
    assert locks.get("job").fence == guard.fence


def test_lease_is_extended_for_a_reason(breaker, held):
    guard = held("busy", ttl=30, renew=False)
    confirm(breaker, confirmation(breaker, "busy", action="extend_lease"), seconds="600", reason="slow disk")
    assert 590 < locks.get("busy").remaining <= 600
    (entry,) = LogEntry.objects.all()
    assert "slow disk" in entry.change_message
    assert str(guard.fence) in entry.change_message


def test_old_locks_are_forgotten(breaker, held):
    held("busy")
    locks.acquire("old").release()
    Lease.objects.filter(name="old").update(expires_at=timezone.now() - timedelta(days=40))
    locks.acquire("young").release()
    html = breaker.post(list_url(), {"action": "prune_locks"}).content.decode()
    assert Lease.objects.count() == 3
    assert "Forgot 1 lock." in confirm(breaker, html, days="30").content.decode()
    assert set(Lease.objects.values_list("name", flat=True)) == {"busy", "young"}


@pytest.mark.parametrize("action", ["break_lease", "extend_lease", "pause_lock", "resume_lock", "prune_locks"])
def test_each_action_needs_its_own_permission(action, held):
    guard = held("busy")
    needed = "pause_lease" if action in ("pause_lock", "resume_lock") else "break_lease"
    other = {"pause_lease": "break_lease", "break_lease": "pause_lease"}[needed]
    client = client_of("view_lease", other)
    until = timezone.localtime() + timedelta(hours=2)
    data = {"confirmed": "1", "lease": f"{guard.fence}:{key('busy')}", "until": f"{until:%Y-%m-%dT%H:%M}"}
    data |= {"action": action, "seconds": "9", "days": "0", "_selected_action": key("busy")}
    assert client.post(list_url(), data).status_code == 403
    del data["confirmed"]
    assert client.post(list_url(), data).status_code == 403
    assert not LogEntry.objects.exists()


def test_confirmation_says_whether_the_holder_is_alive(breaker, held):
    guard = held("busy", ttl=30)
    ago = clock.wall() - timedelta(seconds=3)
    Lease.objects.filter(name="busy").update(
        acquired_at=ago - timedelta(hours=1), renewed_at=ago, expires_at=ago + timedelta(seconds=30)
    )
    assert re.search("<strong>[34].[0-9] s ago: it is alive</strong>", confirmation(breaker, "busy"))
    Lease.objects.filter(name="busy").update(renewed_at=ago - timedelta(seconds=25))
    assert re.search("<strong>2[89] s ago: late</strong>", confirmation(breaker, "busy"))
    guard.release()


def test_renewal_is_kept_with_the_lease(held):
    guard = held("busy")
    guard.extend()
    row = Lease.objects.get(name="busy")
    assert row.acquired_at <= row.renewed_at <= row.expires_at
    guard.release()
    held("busy")
    (each,) = listing.listing(listing.Wish()).rows
    assert each.renewed_at is None


def test_detail_shows_the_history_as_a_picture_and_a_table(viewer, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HISTORY": 3600, "HOLDER": "web-<1>:7"}}
    with locks.lock("job"):
        pass
    with pytest.raises(ZeroDivisionError), locks.lock("job"):
        1 / 0  # noqa: B018
    guard = locks.acquire("job")
    html = page(viewer, change_url("job"))
    assert html.count('<rect class="locks-run ') == 3
    for text in ("web-&lt;1&gt;", "failed: ZeroDivisionError", "50 % within", "99 % within", "running"):
        assert text in html
    guard.release()


def test_numbers_in_attributes_are_the_same_in_every_language(settings, viewer, held):
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HISTORY": 3600}}
    guard = held("job", ttl=5000)
    for html in (page(viewer, list_url()), page(viewer, change_url("job"))):
        assert re.search('data-remaining-ms="[0-9]{7}"', html)
        assert f">{guard.fence}<" in html
        assert not re.search('(x|y|width|x1|value|max)="[0-9]+[,.][0-9]{3}', html)
        assert not re.search('(x|y|width|x1)="[0-9]+,', html)


def test_last_day_is_on_top(settings, viewer):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HISTORY": timedelta(days=7)}}
    guard = locks.acquire("job")
    with_lock("job")(print)()
    locks.force_release("job")
    guard.release()
    day = viewer.get(list_url()).context["found"].day
    assert (day.lost, day.broken, day.expired, day.skipped) == (0, 1, 0, 1)


def test_script_asks_for_what_changes_alone(viewer, held):
    held("busy")
    part = viewer.get(list_url(), headers={"X-Locks-Part": "live"}).content.decode()
    assert "<html" not in part
    assert 'data-live="table"' in part
    assert ">busy<" in part


@pytest.mark.parametrize("where", ["list", "lock", "confirmation"])
def test_nothing_on_the_pages_is_inline(where, breaker, held):
    held("busy")
    html = {
        "list": lambda: page(breaker, list_url()),
        "lock": lambda: page(breaker, change_url("busy")),
        "confirmation": lambda: confirmation(breaker, "busy"),
    }[where]()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", html)
    assert all("src=" in tag or "application/json" in tag for tag in re.findall("<script[^>]*>", html))


def test_pages_work_inside_the_transaction_of_a_request(settings, breaker, held):
    assert LeaseAdmin.changelist_view._non_atomic_requests == {"default"}
    match = resolve(list_url())
    assert match.func._non_atomic_requests == {"default"}


def test_base_class_can_be_registered_at_another_site():
    site = admin.AdminSite("other")
    site.register(Lease, BaseLeaseAdmin)
    assert not checks.run_checks(tags=[checks.Tags.admin])
    assert site._registry[Lease].check() == []
