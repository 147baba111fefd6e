"""Sentry Crons, with a client whose transport is a list."""

from __future__ import annotations

import pytest

pytest.importorskip("sentry_sdk", reason="pip install sentry-sdk")

import sentry_sdk
from sentry_sdk.transport import Transport

from django_locks import SKIPPED, LeaseLost, StoreUnavailable, locks, with_lock
from django_locks.contrib import sentry
from django_locks.testing import hold, lose, unavailable
from django_locks.values import Name

DAILY = {"schedule": {"type": "crontab", "value": "0 3 * * *"}, "max_runtime": 30}


class Sent(Transport):
    def __init__(self):
        super().__init__()
        self.check_ins = []

    def capture_envelope(self, envelope):
        self.check_ins += [item.payload.json for item in envelope.items if item.type == "check_in"]

    def statuses(self):
        return [(check_in["monitor_slug"], check_in["status"]) for check_in in self.check_ins]


@pytest.fixture(autouse=True)
def sent(memory_locks, monkeypatch):
    monkeypatch.setattr(sentry, "_monitors", {})
    sent = Sent()
    with sentry_sdk.isolation_scope():
        client = sentry_sdk.Client("https://key@sentry.invalid/1", transport=sent, default_integrations=False)
        previous = sentry_sdk.get_global_scope().client
        sentry_sdk.get_global_scope().set_client(client)
        yield sent
        sentry_sdk.get_global_scope().set_client(previous)
        client.close()


@with_lock("cron:nightly")
def nightly(work=lambda: "done"):
    return work()


def test_run_checks_in_and_out(sent):
    sentry.monitor("cron:nightly", DAILY)
    assert nightly() == "done"
    begin, end = sent.check_ins
    assert sent.statuses() == [("cron-nightly", "in_progress"), ("cron-nightly", "ok")]
    assert begin["check_in_id"] == end["check_in_id"]
    assert begin["monitor_config"] == DAILY
    assert 0 <= end["duration"] < 10


def test_skipped_replica_does_not_check_in(sent):
    sentry.monitor("cron:nightly", DAILY)
    with hold("cron:nightly"):
        assert nightly() is SKIPPED
    assert not sent.check_ins


def test_failed_run_is_an_error(sent):
    sentry.monitor("cron:nightly")
    with pytest.raises(ZeroDivisionError):
        nightly(lambda: 1 / 0)
    assert sent.statuses()[-1] == ("cron-nightly", "error")


def test_lost_run_is_an_error_although_its_body_went_well(sent):
    sentry.monitor("job:{day}", slug="daily-job")
    with pytest.raises(LeaseLost), locks.lock(Name("job:1", "job:{day}")) as guard:
        lose(guard)
    assert sent.statuses() == [("daily-job", "in_progress"), ("daily-job", "error")]


def test_other_locks_check_in_nothing(sent):
    sentry.monitor("cron:nightly")
    locks.acquire("other").release()
    assert not sent.check_ins


def test_check_in_that_sentry_has_not_taken_is_not_checked_out(sent, monkeypatch):
    asked = []
    monkeypatch.setattr(sentry, "capture_checkin", lambda *args, **kwargs: asked.append((args, kwargs)))
    sentry.monitor("cron:nightly")
    assert nightly() == "done"
    assert asked == [(("cron-nightly",), {"status": "in_progress", "monitor_config": None})]


def test_monitor_without_letters_needs_a_slug():
    with pytest.raises(ValueError, match="slug="):
        sentry.monitor("{}")


def test_owner_is_in_no_event_with_the_variables_of_its_frames(monkeypatch):
    events = []
    client = sentry_sdk.Client("https://key@sentry.invalid/1", before_send=lambda event, hint: events.append(event))
    monkeypatch.setattr(sentry_sdk.get_global_scope(), "client", client)
    guard = locks.acquire("a")
    try:
        with pytest.raises(StoreUnavailable) as failed, unavailable():
            guard.extend()
        sentry_sdk.capture_exception(failed.value)
    finally:
        guard.release()
        client.close()
    (event,) = events
    frames = event["exception"]["values"][-1]["stacktrace"]["frames"]
    assert any("claim" in frame.get("vars", {}) for frame in frames)
    assert str(guard.owner) not in repr(event)
