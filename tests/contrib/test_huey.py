"""huey, with a consumer on Valkey."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("huey", reason="pip install huey")

from huey.exceptions import CancelExecution, TaskException

from django_locks import SKIPPED, locks, with_lock
from tests.contrib.conftest import eventually


@pytest.fixture(scope="module")
def app(site):
    app = site.load("huey_app")
    site.start("huey.bin.huey_consumer", "tests.contrib.huey_app.huey", "-w", "2", "-k", "process", "-f", "-d", "0.05")
    yield app
    app.huey.storage.pool.disconnect()


def value_of(result, timeout=40):
    return result(blocking=True, timeout=timeout, backoff=1, max_delay=0.05)


def test_task_runs_under_the_lock(app, busy):
    assert value_of(app.skipping(1)) is True
    busy("huey:2")
    assert value_of(app.skipping(2)) == SKIPPED


def test_task_with_context_runs_under_the_lock(app, busy):
    assert value_of(app.with_context()) is True
    busy("huey:context")
    assert value_of(app.with_context()) == SKIPPED


def test_busy_task_is_cancelled_without_a_retry(app, busy):
    busy("huey:cancelled")
    result = app.cancelled()
    with pytest.raises(TaskException, match="CancelExecution"):
        value_of(result)


def test_busy_task_runs_later(app, busy):
    guard = busy("huey:retried")
    result = app.retried()
    time.sleep(0.5)  # a round or two
    assert result.get(preserve=True) is None
    guard.release()
    assert eventually(lambda: result.get(preserve=True)) == "ran"


def test_busy_task_is_retried_by_hueys_own_means(app, busy):
    guard = busy("huey:raised")
    result = app.raised()
    with pytest.raises(TaskException, match="LockNotAcquired"):
        value_of(result)
    guard.release()
    result.reset()
    assert eventually(lambda: value_or_error(result)) == "ran"


def value_or_error(result):
    try:
        return result.get()
    except TaskException:  # of an earlier try
        return result.reset()


def test_periodic_task_runs_once_a_tick(app):
    eventually(lambda: locks.get("huey:minutely"))  # the consumer ran it, and at_least keeps the name
    assert app.minutely.call_local() is SKIPPED


def test_direct_call_of_a_retry_raises_for_huey(app, busy):
    busy("huey:retried")
    with pytest.raises(Exception, match="huey:retried"):
        app.retried.call_local()


def test_direct_call_of_a_cancelled_task_raises_for_huey(app, busy):
    busy("huey:cancelled")
    with pytest.raises(CancelExecution, match="huey:cancelled") as cancelled:
        app.cancelled.call_local()
    assert cancelled.value.retry is False


@pytest.mark.parametrize("name", ["skipping", "minutely"])
def test_lock_on_top_of_a_task_is_refused_with_the_right_order(app, name):
    with pytest.raises(TypeError, match=r"below @huey\.task\(\)"):
        with_lock("x")(getattr(app, name))
