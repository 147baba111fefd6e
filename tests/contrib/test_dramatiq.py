"""dramatiq, with a worker on Valkey."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("dramatiq", reason="pip install dramatiq")

from dramatiq.errors import Retry
from dramatiq.results import ResultFailure

from django_locks import SKIPPED, LockNotAcquired, with_lock
from django_locks.contrib.dramatiq import retry


@pytest.fixture(scope="module")
def app(site):
    app = site.load("dramatiq_app")
    site.start("dramatiq", "tests.contrib.dramatiq_app", "-p", "1", "-t", "2")
    yield app
    app.broker.client.close()
    app.results.client.close()


def value_of(message):
    return message.get_result(block=True, timeout=40_000)


def test_actor_runs_under_the_lock(app, busy):
    assert value_of(app.skipping.send(1)) is True
    busy("dramatiq:2")
    assert value_of(app.skipping.send(2)) == SKIPPED


def test_coroutine_actor_runs_under_the_lock(app, busy):
    assert value_of(app.asynchronous.send()) is True
    busy("dramatiq:async")
    assert value_of(app.asynchronous.send()) == SKIPPED


@pytest.mark.parametrize("name", ["retried", "raised"])
def test_busy_actor_runs_later(name, app, busy):
    guard = busy(f"dramatiq:{name}")
    message = getattr(app, name).send()
    time.sleep(0.3)  # a round or two
    guard.release()
    assert value_of(message) == "ran"


def test_busy_actor_that_is_not_to_be_retried_fails(app, busy):
    busy("dramatiq:thrown")
    with pytest.raises(ResultFailure, match="LockNotAcquired"):
        value_of(app.thrown.send())


@pytest.mark.parametrize(("delay", "least", "most"), [(None, 9000, 10_000), (2.5, 2500, 2500), (0, 0, 0)])
def test_retry_comes_when_the_lease_ends_or_when_it_is_told_to(delay, least, most, busy):
    busy("dramatiq:direct")  # with a TTL of 10 s
    with pytest.raises(Retry, match="dramatiq:direct") as told:
        with_lock("dramatiq:direct", on_busy=retry(delay))(print)()
    assert least <= told.value.delay <= most


def test_retry_where_the_holder_has_just_gone_comes_at_once():
    with pytest.raises(Retry) as told:
        retry()(LockNotAcquired("job", alias="default", name="job"))
    assert told.value.delay == 0


def test_lock_on_top_of_an_actor_is_refused_with_the_right_order(app):
    with pytest.raises(TypeError, match=r"below @dramatiq\.actor"):
        with_lock("x")(app.skipping)
