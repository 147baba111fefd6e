"""The admin's pages, by way of their links and forms."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_locks import locks
from django_locks.models import Lease
from django_locks.rows import key_of, name_of

DATABASE = "django_locks.stores.database.DatabaseStore"
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


def list_url():
    return reverse("admin:django_locks_lease_changelist")


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
    """Return the hidden fields and the named buttons of a page's forms."""
    found = []
    for tag in re.findall(r"<input [^>]*>", html):
        attributes = {key: unescape(value) for key, value in re.findall(r'([a-z]+)="([^"]*)"', tag)}
        if attributes.get("type") in {"hidden", "submit"} and "name" in attributes:
            found.append((attributes["name"], attributes["value"]))
    return found


def confirmation(client, *names):
    response = client.post(list_url(), {"action": "break_lease", "_selected_action": names})
    assert response.status_code == 200
    return response.content.decode().replace("\N{NO-BREAK SPACE}", " ")


def confirm(client, html):
    data = {}
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
    assert f'formaction="{list_url()}"' in detail
    asked = breaker.post(list_url(), dict(fields(detail)))
    assert locks.get(name).fence == guard.fence
    confirm(breaker, asked.content.decode())
    assert locks.get(name) is None
    assert guard.release() is False


@pytest.mark.parametrize("name", ["", "\U0010ffff" * 63, "a", *NAMES])
def test_key_of_a_name_is_letters_and_digits_and_leads_back(name):
    assert re.fullmatch("[a-z0-9]*", key_of(name))
    assert name_of(key_of(name)) == name


@pytest.mark.parametrize("key", ["!", "a", "aa=", "..", "AA", "ab", "77777777", "aa" * 5000])
def test_url_of_no_name_leads_back_to_the_index(key, viewer):
    response = viewer.get(list_url() + f"{key}/change/")
    assert response.status_code in {302, 404}


def test_missing_lease_redirects_with_a_message(viewer):
    response = viewer.get(reverse("admin:django_locks_lease_change", args=[key_of("gone")]))
    assert response.status_code == 302


def test_text_from_outside_is_shown_escaped(breaker, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HOLDER": '"><script>1</script>\u202egro.live'}}
    name = "<img src=x onerror=alert(1)>\u202e"
    guard = locks.acquire(name)
    change = reverse("admin:django_locks_lease_change", args=[key_of(name)])
    history = reverse("admin:django_locks_lease_history", args=[key_of(name)])
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
    for state in ("● Held", "◐ Cooling down", "○ Free", "ago, released", "ago, failed"):
        assert state in html


def test_expired_lease_has_run_out(viewer, held):
    guard = held("dead")
    Lease.objects.filter(name="dead").update(expires_at=guard.acquired_at - timedelta(seconds=9))
    assert "ago, ran out" in page(viewer, list_url())


@pytest.mark.parametrize(("state", "names"), [("held", ["busy"]), ("cooling", ["kept"]), ("free", ["free"])])
def test_state_filter_shows_that_state_alone(state, names, viewer, held):
    held("busy")
    locks.acquire("kept", at_least=60).release()
    locks.acquire("free").release()
    response = viewer.get(list_url(), {"state": state})
    assert [lease.name for lease in response.context["cl"].result_list] == names


def test_search_finds_by_name_and_by_holder_but_never_by_owner(viewer, held, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HOLDER": "web-1"}}
    guard = held("cron:nightly")
    for text, count in (("night", 1), ("web-1", 1), ("other", 0), (guard.owner, 0), (guard.owner[:5], 0)):
        assert viewer.get(list_url(), {"q": text}).context["cl"].result_count == count


@pytest.mark.parametrize(
    "lookup",
    [
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
def test_lookup_by_field_is_refused(lookup, viewer, held):
    held("busy")
    assert viewer.get(list_url(), {lookup: "a"}).status_code == 400


def test_owner_is_on_no_page(breaker, held):
    guard = held("busy")
    change = reverse("admin:django_locks_lease_change", args=[key_of("busy")])
    pages = [page(breaker, list_url()), page(breaker, change), confirmation(breaker, "busy")]
    pages.append(confirm(breaker, pages[-1]).content.decode())
    for html in [*pages, str(list(LogEntry.objects.values()))]:
        assert guard.owner not in html


def test_list_reads_the_clock_and_the_rows_once(viewer, held, django_assert_max_num_queries):
    for number in range(20):
        held(f"lock {number}")
    viewer.get(list_url())
    # session, user, two of permissions, clock (in a savepoint of the test: two more), count, rows
    with django_assert_max_num_queries(9):
        viewer.get(list_url(), {"state": "held"})


def test_confirmation_names_holder_age_and_remaining_and_warns(breaker, held):
    guard = held("busy", ttl=300)
    html = confirmation(breaker, "busy")
    assert guard.holder in html
    assert re.search(r"<td>[0-9.]+ s</td>\s*<td>(4 min 59 s|5 min)</td>", html)
    assert "This lease is live" in html
    assert locks.get("busy").fence == guard.fence


def test_confirmed_break_frees_the_lock_and_is_logged(breaker, held):
    guard = held("busy")
    response = confirm(breaker, confirmation(breaker, "busy"))
    assert "Broke the lease of “busy”" in unescape(response.content.decode())
    assert locks.get("busy") is None
    (entry,) = LogEntry.objects.all()
    assert (entry.user.username, entry.object_repr) == ("ada", "busy")
    assert str(guard.fence) in entry.change_message
    assert breaker.get(entry.get_admin_url()).status_code in {200, 301, 302}
    assert "Broke the lease" in page(breaker, reverse("admin:django_locks_lease_history", args=[key_of("busy")]))
    assert "ago, broken" in page(breaker, list_url())


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
    assert "These leases are live" in html
    confirm(breaker, html)
    assert list(locks.leases()) == []
    assert LogEntry.objects.count() == 2


def test_free_lock_is_not_asked_about(breaker):
    locks.acquire("free").release()
    response = breaker.post(list_url(), {"action": "break_lease", "_selected_action": ["free"]}, follow=True)
    assert "nothing was changed" in response.content.decode()


def test_too_many_leases_are_refused(breaker, held):
    names = [f"lock {number}" for number in range(101)]
    for name in names:
        held(name)
    response = breaker.post(list_url(), {"action": "break_lease", "_selected_action": names}, follow=True)
    assert "at most 100" in response.content.decode()


def test_kept_name_can_be_freed(breaker):
    locks.acquire("kept", at_least=60).release()
    confirm(breaker, confirmation(breaker, "kept"))
    assert locks.get("kept") is None


@pytest.mark.parametrize("lease", ["", "x", "1", "1:", "-1:busy", "²:busy", "9" * 30 + ":busy"])
def test_crafted_choice_is_a_bad_request(lease, breaker, held):
    held("busy")
    data = {"action": "break_lease", "_selected_action": "busy", "confirmed": "1", "lease": lease}
    assert breaker.post(list_url(), data).status_code == 400
    assert locks.get("busy")


@pytest.mark.parametrize(
    "permissions", [(), ("view_lease",), ("break_lease",), ("view_lease", "change_lease", "delete_user")]
)
def test_post_without_both_permissions_is_forbidden_and_changes_nothing(permissions, held):
    guard = held("busy")
    client = client_of(*permissions)
    data = {"action": "break_lease", "_selected_action": "busy", "confirmed": "1", "lease": f"{guard.fence}:busy"}
    for url in (list_url(), reverse("admin:django_locks_lease_change", args=[key_of("busy")])):
        assert client.post(url, data).status_code == 403
    assert locks.get("busy").fence == guard.fence
    assert not LogEntry.objects.exists()


def test_viewer_sees_no_action_and_no_button(viewer, held):
    held("busy")
    change = reverse("admin:django_locks_lease_change", args=[key_of("busy")])
    for html in (page(viewer, list_url()), page(viewer, change)):
        assert "break_lease" not in html
        assert "Break lease" not in html


def test_nobody_gets_in_without_a_login(client, held):
    held("busy")
    for url in (list_url(), reverse("admin:django_locks_lease_change", args=[key_of("busy")])):
        assert "/login/" in client.get(url).url
        assert "/login/" in client.post(url, {"action": "break_lease", "confirmed": "1"}).url


def test_get_changes_nothing(breaker, held):
    guard = held("busy")
    data = {"action": "break_lease", "_selected_action": "busy", "confirmed": "1", "lease": f"{guard.fence}:busy"}
    breaker.get(list_url(), data)
    breaker.get(reverse("admin:django_locks_lease_change", args=[key_of("busy")]), data)
    assert locks.get("busy").fence == guard.fence


def test_post_without_csrf_token_is_forbidden(held):
    guard = held("busy")
    client = client_of("view_lease", "break_lease", enforce_csrf_checks=True)
    data = {"action": "break_lease", "_selected_action": "busy", "confirmed": "1", "lease": f"{guard.fence}:busy"}
    assert client.post(list_url(), data).status_code == 403
    assert locks.get("busy").fence == guard.fence


def test_superuser_can_neither_add_nor_change_nor_delete(held, admin_client):
    held("busy")
    change = reverse("admin:django_locks_lease_change", args=[key_of("busy")])
    assert admin_client.get(reverse("admin:django_locks_lease_add")).status_code == 403
    assert admin_client.post(change, {"holder": "me"}).status_code == 403
    assert admin_client.post(change.replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
    admin_client.post(list_url(), {"action": "delete_selected", "_selected_action": "busy", "post": "yes"})
    assert locks.get("busy")


def test_names_are_broken_through_the_entry_whose_prefix_they_have(breaker, settings):
    other = {"BACKEND": DATABASE, "KEY_PREFIX": "prod"}
    settings.LOCKS = {"default": {"BACKEND": DATABASE}, "other": other}
    guards = [locks.acquire("job"), locks.using("other").acquire("x" * 200)]
    confirm(breaker, confirmation(breaker, "job", "prod:" + "x" * 200))
    assert [guard.release() for guard in guards] == [False, False]


@pytest.mark.parametrize(("prefix", "name"), [("prod", "job"), ("", "x" * 200)])
def test_row_of_another_project_is_left_alone(prefix, name, breaker, settings):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "KEY_PREFIX": "foreign"}}
    guard = locks.acquire(name)
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "KEY_PREFIX": prefix}}
    response = confirm(breaker, confirmation(breaker, f"foreign:{name}"))
    assert "nothing was changed" in response.content.decode()
    assert guard.release() is True


def test_without_a_database_store_there_is_nothing_in_the_admin(settings, admin_client):
    settings.LOCKS = {"default": {"BACKEND": "django_locks.stores.memory.MemoryStore"}}
    assert admin_client.get(list_url()).status_code == 403
    assert list_url() not in page(admin_client, reverse("admin:index"))


def test_wrong_entry_of_the_setting_does_not_break_the_admin(settings, admin_client):
    settings.LOCKS = {"broken": {"BACKEND": "no.such.store"}, "default": {"BACKEND": DATABASE}}
    assert admin_client.get(list_url()).status_code == 200


@pytest.mark.parametrize("view", ["changelist", "change", "history"])
def test_store_that_cannot_be_asked_is_said_in_a_message(view, settings, admin_client):
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": "gone"}}
    url = reverse(f"admin:django_locks_lease_{view}", args=[] if view == "changelist" else [key_of("busy")])
    response = admin_client.get(url, follow=True)
    assert "is no alias of DATABASES" in response.content.decode()
