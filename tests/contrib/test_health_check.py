"""django-health-check, asked as its own view asks."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("health_check.base", reason="pip install django-health-check")

from django.test import AsyncRequestFactory
from health_check.views import HealthCheckView

from django_locks import locks, signals
from django_locks.contrib.health_check import NAME, LockStore
from django_locks.testing import unavailable
from tests.conftest import DATABASE, REDIS


def ask(*checks):
    request = AsyncRequestFactory().get("/health", headers={"accept": "application/json"})
    response = asyncio.run(HealthCheckView.as_view(checks=checks or [LockStore])(request))
    return response.status_code, response.content.decode()


@pytest.mark.parametrize("kind", ["memory", "valkey", "sqlite"])
@pytest.mark.django_db(transaction=True)
def test_store_that_grants_and_frees_is_healthy(kind, spec_of, settings):
    settings.LOCKS = {"default": spec_of(kind).locks}
    assert ask() == (200, """{"LockStore(alias='default')": "OK"}""")
    assert locks.get(NAME) is None


def test_other_probe_at_the_same_time_is_no_fault():
    with locks.lock(NAME):
        assert ask()[0] == 200


def test_store_that_cannot_be_asked_is_unavailable():
    with unavailable():
        status, text = ask()
    assert status == 500
    assert "The lock store 'default' cannot be asked" in text


def test_unreachable_server_is_named_by_its_alias_alone(settings):
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": "redis://user:secret@127.0.0.1:1/0"}}
    status, text = ask()
    assert status == 500
    assert "Unavailable" in text
    assert "secret" not in text
    assert "127.0.0.1" not in text


def test_missing_or_wrong_entry_is_unavailable(settings):
    assert "no valid entry 'other'" in ask((LockStore, {"alias": "other"}))[1]
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": "nowhere"}}
    assert ask()[0] == 500


def test_probe_sends_no_signals():
    news = []
    receive = lambda **kwargs: news.append(kwargs)  # noqa: E731
    signals.lease_acquired.connect(receive)
    try:
        ask()
    finally:
        signals.lease_acquired.disconnect(receive)
    assert not news
