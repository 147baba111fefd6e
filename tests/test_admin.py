"""The admin's pages, by way of their links and forms."""

from __future__ import annotations

import copy
import re
import uuid
from datetime import timedelta
from html import unescape

import django
import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import resolve, reverse
from django.utils import timezone

from django_locks import clock, listing, locks, with_lock
from django_locks.admin import BaseLeaseAdmin, LeaseAdmin
from django_locks.models import Lease
from django_locks.places import key_of, name_of
from tests.conftest import DATABASE, MEMORY, REDIS

NAMES = [
    'a/b:c?d#e"<script>',
    "..",
    ".",
    "two words",
    "100%",
    "_5F",
    "add",
    "a&amp;b",
    "<img src=x onerror=alert(1)>",
    "größe",
    "😀",
    "'",
    "\\",
    "a+b;c=d,e",
]

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _database_store(settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def list_url():
    return reverse("admin:django_locks_lease_changelist")


def key(stored, alias="default"):
    return key_of(alias, stored)


def change_url(stored, alias="default"):
    return reverse("admin:django_locks_lease_change", args=[key(stored, alias)])


def history_url(stored):
    return reverse("admin:django_locks_lease_history", args=[key(stored)])


def client_of(*permissions, **options):
    user = User.objects.create_user("ada", password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(**options)
    client.force_login(user)
    return client


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


def page(client, url):
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode().replace("\N{NO-BREAK SPACE}", " ")


def links(html):
    return [unescape(link) for link in re.findall(r'<a[^>]* href="([^"]*)"', html)]


def fields(html):
    """Return the hidden fields of a page's forms for locks."""
    found = []
    for tag in re.findall(r"<input [^>]*>", html[html.index('class="locks"') :]):
        attributes = {key: unescape(value) for key, value in re.findall(r'([a-z]+)="([^"]*)"', tag)}
        if attributes.get("type") == "hidden" and attributes["name"] != "csrfmiddlewaretoken":
            found.append((attributes["name"], attributes["value"]))
    return found


def shown(response):
    return [each["row"].stored for each in response.context["rows"]]


def confirmation(client, *names, action="break_lease", alias="default"):
    response = client.post(list_url(), {"action": action, "_selected_action": [key(name, alias) for name in names]})
    assert response.status_code == 200
    return response.content.decode().replace("\N{NO-BREAK SPACE}", " ")


def confirm(client, html, **data):
    data = {"confirmed": ["1"], **data}
    for name, value in fields(html):
        data.setdefault(name, []).append(value)
    return client.post(list_url(), data, follow=True)


@pytest.mark.parametrize("name", NAMES)
def test_link_of_any_name_leads_to_its_lease_and_back_to_its_history(name, viewer, held):
    held(name)
    (link,) = [link for link in links(page(viewer, list_url())) if link.endswith("/change/")]
    detail = viewer.get(link)
    assert detail.context["original"].name == name
    (history,) = [link for link in links(detail.content.decode()) if link.endswith("/history/")]
    assert detail.status_code == 200
    assert viewer.get(history).context["object"].name == name
    assert link in links(page(viewer, history))


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_broken_from_its_page(name, breaker, held):
    guard = held(name)
    (link,) = [link for link in links(page(breaker, list_url())) if link.endswith("/change/")]
    detail = page(breaker, link)
    assert f'action="{list_url()}"' in detail
    asked = breaker.post(list_url(), {"action": "break_lease", **dict(fields(detail))})
    assert locks.get(name).fence == guard.fence
    confirm(breaker, asked.content.decode())
    assert locks.get(name) is None
    assert guard.release() is False


@pytest.mark.parametrize("name", ["\U0010ffff" * 63, "a", *NAMES])
def test_key_of_a_name_is_letters_and_digits_and_leads_back(name):
    assert re.fullmatch("[a-z0-9]*", key_of("default", name))
    assert name_of(key_of("default", name)) == ("default", name)
    assert name_of(key_of(name, "job")) == (name, "job")


@pytest.mark.parametrize(
    "key", ["!", "a", "aa=", "..", "AA", "ab", "77777777", "aa" * 5000, "0", "mrswm0", "mrswmylvnr2a01", "0AA", "00aa"]
)
def test_url_of_no_name_leads_back_to_the_index(key, viewer):
    response = viewer.get(list_url() + f"{key}/change/")
    assert response.status_code in {302, 404}


def test_missing_lease_redirects_with_a_message(viewer):
    response = viewer.get(change_url("gone"), follow=True)
    assert "Nothing is known of the lock “gone”" in response.content.decode()


def test_text_from_outside_is_shown_escaped(breaker, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HOLDER": '"><script>1</script>\u202egro.live'}}
    name = "<img src=x onerror=alert(1)>\u202e"
    guard = locks.acquire(name)
    change, history = change_url(name), history_url(name)
    asked = confirmation(breaker, name)
    pages = [page(breaker, list_url()), page(breaker, list_url() + "?q=%3Cimg"), page(breaker, change), asked]
    done = confirm(breaker, asked)
    pages += [done.content.decode(), page(breaker, history), page(breaker, reverse("admin:index"))]
    guard.release()
    for html in pages:
        assert "<img src=x" not in html
        assert "<script>1" not in html
        assert "&lt;img src=x" in html
        assert not re.search('\u202e(?!")', html), "only the value of a hidden field may hold it"
    assert "<bdi>&quot;&gt;&lt;script&gt;1&lt;/script&gt;\\u202egro.live</bdi>" in pages[0]


def test_list_tells_each_state(viewer, held):
    held("busy")
    locks.acquire("kept", at_least=60).release()
    locks.acquire("free").release()
    with pytest.raises(ZeroDivisionError), locks.lock("failed"):
        1 / 0  # noqa: B018
    html = page(viewer, list_url())
    locks.pause("stopped", 60, note="deploying")
    html = page(viewer, list_url())
    for mark, state in (("●", "Held"), ("◐", "Cooling down"), ("‖", "Paused"), ("○", "Free")):
        assert f'aria-hidden="true">{mark}</span> {state}' in html
    for text in (", released 0.", ", failed 0.", "deploying"):
        assert text in html


def test_expired_lease_has_run_out(viewer, held):
    guard = held("dead")
    Lease.objects.filter(name="dead").update(expires_at=guard.acquired_at - timedelta(seconds=9))
    assert ", ran out 9" in page(viewer, list_url())


@pytest.mark.parametrize(("state", "names"), [("held", ["busy"]), ("cooling", ["kept"]), ("free", ["free"])])
def test_state_filter_shows_that_state_alone(state, names, viewer, held):
    held("busy")
    locks.acquire("kept", at_least=60).release()
    locks.acquire("free").release()
    response = viewer.get(list_url(), {"state": state})
    assert shown(response) == names


def test_search_finds_by_name_and_by_holder_but_never_by_owner(viewer, held, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HOLDER": "web-1"}}
    guard = held("cron:nightly")
    for text, count in (("night", 1), ("web-1", 1), ("other", 0), (guard.owner, 0), (guard.owner[:5], 0)):
        assert len(shown(viewer.get(list_url(), {"q": text}))) == count


@pytest.mark.parametrize(
    "lookup",
    [
        "_facets",
        "owner__startswith",
        "owner",
        "owner__gt",
        "owner__regex",
        "name__startswith",
        "pk",
        "state__regex",
        "expires_at__gt",
    ],
)
def test_lookup_by_field_does_nothing(lookup, viewer, held):
    held("busy")
    assert shown(viewer.get(list_url(), {lookup: "a"})) == ["busy"]


@pytest.mark.parametrize("query", [{"state": "x"}, {"store": "x"}])
def test_filter_that_the_page_does_not_offer_is_a_bad_request(query, viewer):
    assert viewer.get(list_url(), query).status_code == 400


@pytest.mark.parametrize("page", ["0", "-1", "x", "99999999", "", "²"])
def test_page_number_that_is_none_is_the_first_page(page, viewer, held):
    held("busy")
    assert shown(viewer.get(list_url(), {"p": page})) == ["busy"]


def test_owner_is_on_no_page(breaker, held):
    guard = held("busy")
    change = change_url("busy")
    pages = [page(breaker, list_url()), page(breaker, change), confirmation(breaker, "busy")]
    pages.append(confirm(breaker, pages[-1]).content.decode())
    for html in [*pages, str(list(LogEntry.objects.values()))]:
        assert guard.owner not in html


def test_number_of_queries_does_not_grow_with_the_locks(viewer, held):
    def queries():
        with CaptureQueriesContext(connection) as found:
            viewer.get(list_url())
        return len(found)

    held("first")
    viewer.get(list_url())
    before = queries()
    for number in range(20):
        held(f"lock {number}")
        locks.acquire(f"free {number}").release()
    assert queries() == before <= 10


def test_confirmation_names_holder_age_and_remaining_and_warns(breaker, held):
    guard = held("busy", ttl=300)
    html = confirmation(breaker, "busy")
    assert guard.holder in html
    assert re.search(r'data-age-ms="[0-9]+">[0-9.]+ s<', html)
    assert re.search(r'data-remaining-ms="[0-9]+">(4 min 59 s|5 min)<', html)
    assert "may be at work" in html
    assert locks.get("busy").fence == guard.fence


def test_confirmed_break_frees_the_lock_and_is_logged(breaker, held):
    guard = held("busy")
    response = confirm(breaker, confirmation(breaker, "busy"), reason="hung since 02:10 <b>")
    assert "Broke the lease of “busy”" in unescape(response.content.decode())
    assert locks.get("busy") is None
    (entry,) = LogEntry.objects.all()
    assert (entry.user.username, entry.object_repr) == ("ada", "busy")
    assert str(guard.fence) in entry.change_message
    assert "hung since 02:10 <b>" in entry.change_message
    assert breaker.get(entry.get_admin_url()).status_code in {200, 301, 302}
    for html in (page(breaker, history_url("busy")), page(breaker, change_url("busy"))):
        assert "Broke the lease" in html
        assert "hung since 02:10 &lt;b&gt;" in html
    assert ", broken 0." in page(breaker, list_url())


def test_lease_granted_after_the_page_was_shown_is_spared(breaker, held):
    first = held("busy")
    html = confirmation(breaker, "busy")
    first.release()
    second = held("busy")
    response = confirm(breaker, html)
    assert "nothing was changed" in response.content.decode()
    assert locks.get("busy").fence == second.fence
    assert not LogEntry.objects.exists()


def test_several_leases_are_broken_together_and_free_ones_left_out(breaker, held):
    held("one")
    held("two")
    locks.acquire("free").release()
    html = confirmation(breaker, "one", "two", "free")
    confirm(breaker, html)
    assert list(locks.leases()) == []
    assert LogEntry.objects.count() == 2


def test_free_lock_is_not_asked_about(breaker):
    locks.acquire("free").release()
    response = breaker.post(list_url(), {"action": "break_lease", "_selected_action": [key("free")]}, follow=True)
    assert "Nothing was changed" in response.content.decode()


def test_too_many_locks_are_refused(breaker):
    names = [f"lock {number}" for number in range(101)]
    keys = [key(name) for name in names]
    response = breaker.post(list_url(), {"action": "break_lease", "_selected_action": keys}, follow=True)
    assert "at most 100" in response.content.decode()


def test_kept_name_can_be_freed(breaker):
    locks.acquire("kept", at_least=60).release()
    confirm(breaker, confirmation(breaker, "kept"))
    assert locks.get("kept") is None


@pytest.mark.parametrize("lease", ["", "x", "1", "1:", "-1:{key}", "²:{key}", "9" * 30 + ":{key}", "1:busy", "1:0"])
def test_crafted_choice_is_a_bad_request(lease, breaker, held):
    held("busy")
    data = {"action": "break_lease", "confirmed": "1", "lease": lease.format(key=key("busy"))}
    assert breaker.post(list_url(), data).status_code == 400
    assert locks.get("busy")


@pytest.mark.parametrize(
    "permissions", [(), ("view_lease",), ("break_lease",), ("view_lease", "change_lease", "delete_user")]
)
def test_post_without_both_permissions_is_forbidden_and_changes_nothing(permissions, held):
    guard = held("busy")
    client = client_of(*permissions)
    data = {
        "action": "break_lease",
        "_selected_action": "busy",
        "confirmed": "1",
        "lease": f"{guard.fence}:{key('busy')}",
    }
    for url in (list_url(), change_url("busy")):
        assert client.post(url, data).status_code == 403
    assert locks.get("busy").fence == guard.fence
    assert not LogEntry.objects.exists()


def test_viewer_sees_no_action_and_no_button(viewer, held):
    held("busy")
    change = change_url("busy")
    for html in (page(viewer, list_url()), page(viewer, change)):
        for word in ("break_lease", "Break lease", "pause_lock", "prune_locks", "extend_lease", "resume_lock"):
            assert word not in html


def test_nobody_gets_in_without_a_login(client, held):
    held("busy")
    for url in (list_url(), change_url("busy")):
        assert "/login/" in client.get(url).url
        assert "/login/" in client.post(url, {"action": "break_lease", "confirmed": "1"}).url


def test_get_changes_nothing(breaker, held):
    guard = held("busy")
    data = {
        "action": "break_lease",
        "_selected_action": "busy",
        "confirmed": "1",
        "lease": f"{guard.fence}:{key('busy')}",
    }
    breaker.get(list_url(), data)
    breaker.get(change_url("busy"), data)
    assert locks.get("busy").fence == guard.fence


def test_post_without_csrf_token_is_forbidden(held):
    guard = held("busy")
    client = client_of("view_lease", "break_lease", enforce_csrf_checks=True)
    data = {
        "action": "break_lease",
        "_selected_action": "busy",
        "confirmed": "1",
        "lease": f"{guard.fence}:{key('busy')}",
    }
    assert client.post(list_url(), data).status_code == 403
    assert locks.get("busy").fence == guard.fence


def test_superuser_can_neither_add_nor_change_nor_delete(held, admin_client):
    held("busy")
    change = change_url("busy")
    assert admin_client.get(reverse("admin:django_locks_lease_add")).status_code == 403
    assert admin_client.post(change, {"holder": "me"}).status_code == 403
    assert admin_client.post(change.replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
    data = {"action": "delete_selected", "_selected_action": "busy", "post": "yes"}
    assert admin_client.post(list_url(), data).status_code == 400
    assert locks.get("busy")


def test_names_are_broken_through_the_entry_whose_prefix_they_have(breaker, settings):
    other = {"BACKEND": DATABASE, "KEY_PREFIX": "prod"}
    settings.LOCKS = {"default": {"BACKEND": DATABASE}, "other": other}
    guards = [locks.acquire("job"), locks.using("other").acquire("x" * 200)]
    rows = {each["row"].stored: each["row"].alias for each in breaker.get(list_url()).context["rows"]}
    assert rows == {"job": "default", "prod:" + "x" * 200: "other"}
    confirm(breaker, confirmation(breaker, "job", "prod:" + "x" * 200))
    assert [guard.release() for guard in guards] == [False, False]


@pytest.mark.parametrize(("prefix", "name"), [("prod", "job"), ("", "x" * 200)])
def test_row_of_another_project_is_left_alone(prefix, name, breaker, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "KEY_PREFIX": "foreign"}}
    guard = locks.acquire(name)
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "KEY_PREFIX": prefix}}
    assert "only be looked at" in page(breaker, change_url(f"foreign:{name}"))
    response = confirm(breaker, confirmation(breaker, f"foreign:{name}"))
    assert "nothing was changed" in response.content.decode()
    assert guard.release() is True


def test_wrong_entry_of_the_setting_is_named_on_the_page(settings, admin_client):
    settings.LOCKS = {"broken": {"BACKEND": "no.such.store"}, "default": {"BACKEND": DATABASE}}
    html = page(admin_client, list_url())
    assert "1/2" in html
    assert "no.such.store" in html


@pytest.mark.parametrize("view", ["changelist", "change"])
def test_store_that_cannot_be_asked_is_said_in_a_message(view, settings, admin_client):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": "gone"}}
    url = list_url() if view == "changelist" else change_url("busy")
    response = admin_client.get(url, follow=True)
    assert "is no alias of DATABASES" in response.content.decode()


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
