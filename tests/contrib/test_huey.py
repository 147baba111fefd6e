"""huey, with a consumer on Valkey."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("huey", reason="pip install huey")

from huey.exceptions import TaskException  # noqa: E402

from django_locks import SKIPPED, LockNotAcquired, locks, with_lock  # noqa: E402
from tests.contrib import huey_app  # noqa: E402
from tests.contrib.conftest import eventually  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def consumer(site):
    from huey.storage import PriorityRedisStorage

    huey_app.huey.storage = PriorityRedisStorage("contrib", url=site.url)
    yield site.start("huey.bin.huey_consumer", "tests.contrib.huey_app.huey", "-w", "2", "-k", "process", "-f", "-d", "0.05")
    huey_app.huey.storage.conn.close()
    huey_app.huey.storage.pool.disconnect()


def value_of(result, timeout=40):
    return result(blocking=True, timeout=timeout, backoff=1, max_delay=0.05)


def test_task_runs_under_the_lock(busy):
    assert value_of(huey_app.skipping(1)) is True
    busy("huey:2")
    assert value_of(huey_app.skipping(2)) == SKIPPED


def test_task_with_context_runs_under_the_lock(busy):
    assert value_of(huey_app.with_context()) is True
    busy("huey:context")
    assert value_of(huey_app.with_context()) == SKIPPED


def test_busy_task_is_cancelled_without_a_retry(busy):
    busy("huey:cancelled")
    result = huey_app.cancelled()
    with pytest.raises(TaskException, match="CancelExecution"):
        value_of(result)


def test_busy_task_runs_later(busy):
    guard = busy("huey:retried")
    result = huey_app.retried()
    time.sleep(0.5)  # a round or two
    assert result.get(preserve=True) is None
    guard.release()
    assert eventually(lambda: result.get(preserve=True)) == "ran"


def test_busy_task_is_retried_by_hueys_own_means(busy):
    guard = busy("huey:raised")
    result = huey_app.raised()
    with pytest.raises(TaskException, match="LockNotAcquired"):
        value_of(result)
    result.reset()
    guard.release()
    eventually(lambda: huey_app.huey.storage.peek_data(result.id) is not huey_app.huey.storage)


def test_periodic_task_runs_under_the_lock(busy):
    busy("huey:minutely")
    assert huey_app.minutely.call_local() is SKIPPED
    assert huey_app.huey._registry.periodic_tasks


def test_direct_call_of_a_retry_raises_for_huey(busy):
    busy("huey:retried")
    with pytest.raises(Exception, match="huey:retried"):
        huey_app.retried.call_local()


@pytest.mark.parametrize("task", [huey_app.skipping, huey_app.minutely])
def test_lock_on_top_of_a_task_is_refused_with_the_right_order(task):
    with pytest.raises(TypeError, match=r"below @huey\.task\(\)"):
        with_lock("x")(task)


def test_refusal_in_the_body_is_no_skip():
    with locks.lock("huey:other"), pytest.raises(LockNotAcquired):
        locks.acquire("huey:other")
