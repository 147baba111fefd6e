"""dramatiq, with a worker on Valkey."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("dramatiq", reason="pip install dramatiq")

import redis  # noqa: E402
from dramatiq.results import ResultFailure  # noqa: E402

from django_locks import SKIPPED, with_lock  # noqa: E402
from tests.contrib import dramatiq_app  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def worker(site):
    client = redis.Redis.from_url(site.url)
    dramatiq_app.broker.client = dramatiq_app.results.client = client
    yield site.start("dramatiq", "tests.contrib.dramatiq_app", "-p", "1", "-t", "2")
    client.close()


def value_of(message):
    return message.get_result(block=True, timeout=40_000)


def test_actor_runs_under_the_lock(busy):
    assert value_of(dramatiq_app.skipping.send(1)) is True
    busy("dramatiq:2")
    assert value_of(dramatiq_app.skipping.send(2)) == SKIPPED


def test_coroutine_actor_runs_under_the_lock(busy):
    assert value_of(dramatiq_app.asynchronous.send()) is True
    busy("dramatiq:async")
    assert value_of(dramatiq_app.asynchronous.send()) == SKIPPED


@pytest.mark.parametrize("actor", [dramatiq_app.retried, dramatiq_app.raised])
def test_busy_actor_runs_later(actor, busy):
    guard = busy(f"dramatiq:{actor.actor_name}")
    message = actor.send()
    time.sleep(0.3)  # a round or two
    guard.release()
    assert value_of(message) == "ran"


def test_busy_actor_that_is_not_to_be_retried_fails(busy):
    busy("dramatiq:thrown")
    with pytest.raises(ResultFailure, match="LockNotAcquired"):
        value_of(dramatiq_app.thrown.send())


def test_lock_on_top_of_an_actor_is_refused_with_the_right_order():
    with pytest.raises(TypeError, match=r"below @dramatiq\.actor"):
        with_lock("x")(dramatiq_app.skipping)
