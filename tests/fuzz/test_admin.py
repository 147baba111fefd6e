"""Any request to the admin's pages: an answer, never an error; and nothing is changed that is not confirmed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from django_locks import locks
from django_locks.admin_actions import ACTIONS, PRUNE
from django_locks.models import Lease
from django_locks.places import key_of
from tests.admin_pages import client_of, list_url
from tests.conftest import DATABASE
from tests.fuzz.profile import examples
from tests.fuzz.strategies import NUMBERS, TEXT

pytestmark = pytest.mark.django_db

ANSWERS = {200, 302, 400, 403, 404}
FIELDS = "action _selected_action confirmed lease seconds reason until note days q p state store facets select_across"

KEYS = st.one_of(
    st.sampled_from([key_of("default", "held"), key_of("default", "free"), key_of("other", "held"), "", "0", "a0a"]),
    TEXT.filter(lambda text: "\0" not in text and text.isprintable() and text != "").map(
        lambda text: key_of("default", text.encode("utf-8", "ignore").decode() or "x")
    ),
    TEXT,
)
MOMENTS = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat(timespec="minutes")),
    st.sampled_from(["0001-01-01T00:00", "9999-12-31T23:59", "2026-03-29T02:30", "now", "1e9"]),
)
VALUES = st.one_of(
    st.sampled_from([*ACTIONS, PRUNE, "delete_selected", "1", "", "held", "live", "default", "5", "-1", "1e400", "²"]),
    st.builds("{}:{}".format, st.integers(0, 2**64), KEYS),
    NUMBERS.map(str),
    MOMENTS,
    KEYS,
    TEXT,
)
FORMS = st.dictionaries(
    st.sampled_from(FIELDS.split()) | TEXT, st.lists(VALUES, min_size=1, max_size=3), max_size=6
).map(lambda form: {encodable(key): [encodable(value) for value in values] for key, values in form.items()})


def encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def state() -> list[tuple[Any, ...]]:
    return list(Lease.objects.order_by("name").values_list("name", "owner", "fence", "expires_at", "outcome"))


@pytest.fixture
def client(settings: Any) -> Any:
    """One who may do everything, beside a lock that is held, one that is kept, one that is paused and a free one."""
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HISTORY": 3600}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    guard = locks.acquire("held", ttl=3600)
    locks.acquire("kept", at_least=3600).release()
    locks.pause("paused", 3600, note="mending")
    locks.acquire("free").release()
    yield client_of("view_lease", "break_lease", "pause_lease")
    guard.release()


@examples(40)
@given(query=FORMS)
def test_list_answers_any_query_and_changes_nothing(client: Any, query: dict[str, list[str]]) -> None:
    before = state()
    assert client.get(list_url(), query).status_code in {200, 400}
    assert state() == before


@examples(80)
@given(key=TEXT | KEYS, view=st.sampled_from(["change", "history", "delete", "nothing"]), post=st.booleans())
def test_pages_of_any_object_id_answer_and_change_nothing(client: Any, key: str, view: str, post: bool) -> None:
    before = state()
    url = f"{list_url()}{encodable(key).replace('?', '%3F').replace('#', '%23')}/{view}/"
    response = client.post(url, {"post": "yes"}) if post else client.get(url)
    assert response.status_code in ANSWERS | {301}
    assert state() == before


@examples(100)
@given(form=FORMS)
def test_list_answers_any_form_and_changes_nothing_unless_it_says_so(client: Any, form: dict[str, list[str]]) -> None:
    before, logged = state(), LogEntry.objects.count()
    response = client.post(list_url(), form)
    assert response.status_code in ANSWERS
    if response.status_code == 302:
        assert response["Location"] == list_url()
    if LogEntry.objects.count() == logged and form.get("action") != [PRUNE]:
        assert state() == before


@examples(60)
@given(
    action=st.sampled_from(sorted(ACTIONS)),
    fence=st.integers(0, 2**65),
    values=st.fixed_dictionaries({}, optional=dict.fromkeys(["seconds", "reason", "until", "note"], VALUES | MOMENTS)),
)
def test_form_of_a_lease_that_is_over_changes_nothing(
    client: Any, action: str, fence: int, values: dict[str, str]
) -> None:
    before = state()
    form = {key: encodable(value) for key, value in values.items()}
    lease = f"{fence}:{key_of('default', 'held')}"
    response = client.post(list_url(), {"action": action, "confirmed": "1", "lease": lease, **form})
    assert response.status_code in {200, 302, 400}
    assert state() == before


def test_other_pages_of_the_admin_answer(client: Any) -> None:
    assert client.get(reverse("admin:index")).status_code == 200
