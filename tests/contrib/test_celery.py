"""Celery, with a worker on Valkey."""

from __future__ import annotations

import json

import pytest

celery = pytest.importorskip("celery", reason="pip install celery")

from celery.exceptions import Ignore  # noqa: E402
from celery.exceptions import TimeoutError as CeleryTimeout  # noqa: E402

from django_locks import SKIPPED, LockNotAcquired, locks, with_lock  # noqa: E402
from django_locks.contrib.celery import retry  # noqa: E402
from tests.contrib import celery_app  # noqa: E402
from tests.contrib.conftest import eventually  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def worker(site):
    celery_app.app.conf.update(broker_url=site.url, result_backend=site.url)
    process = site.start("celery", "-A", "tests.contrib.celery_app", "worker", "-c", "2", "-l", "INFO", "-O", "fair")
    yield process
    celery_app.app.close()


def result_of(task, *args, **kwargs):
    return task.delay(*args, **kwargs).get(timeout=40, interval=0.02)


def test_task_runs_under_the_lock():
    assert result_of(celery_app.skipping, "a", full=True) == ["a", True, True]
    assert locks.get("import:a") is None


def test_skip_is_a_success_whose_result_can_be_told_apart(busy):
    busy("import:b")
    result = celery_app.skipping.delay("b")
    assert result.get(timeout=40) == SKIPPED
    assert result.state == "SUCCESS"
    assert json.loads(json.dumps(result.result)) == SKIPPED
    assert result_of(celery_app.skipping, "c") != SKIPPED


def test_shared_task_runs_under_the_lock(busy):
    assert result_of(celery_app.shared) is True
    busy("shared")
    assert result_of(celery_app.shared) == SKIPPED


def test_bound_task_runs_under_the_lock(busy):
    assert result_of(celery_app.bound, 7) == ["tests.contrib.celery_app.bound", True, True]
    busy("bound:7")
    assert result_of(celery_app.bound, 7) == SKIPPED


def test_task_class_runs_under_the_lock_of_its_run(busy):
    assert result_of(celery_app.classy, 1) is True
    busy("class:classy:2")
    assert result_of(celery_app.classy, 2) == SKIPPED
    with pytest.raises(TypeError, match="Decorate its method"):
        with_lock("x")(celery_app.Classy)


def test_annotation_can_add_the_lock(busy):
    assert result_of(celery_app.annotated) is True
    busy("annotated:tests.contrib.celery_app.annotated")
    assert result_of(celery_app.annotated) == SKIPPED


def test_busy_task_is_retried_until_it_runs(busy):
    guard = busy("retried")
    result = celery_app.retried.delay()
    eventually(lambda: result.state == "RETRY")
    guard.release()
    assert result.get(timeout=40) >= 1


def test_busy_task_whose_retries_are_spent_fails(busy):
    busy("given-up")
    with pytest.raises(LockNotAcquired):
        result_of(celery_app.given_up)


def test_busy_task_is_retried_by_celerys_own_means(busy):
    guard = busy("auto")
    result = celery_app.auto_retried.delay()
    eventually(lambda: result.state == "RETRY")
    guard.release()
    assert result.get(timeout=40) is True


def test_ignored_task_has_no_result(busy, site):
    busy("ignored")
    result = celery_app.ignored.delay()
    eventually(lambda: f"{result.id}] ignored" in site.logs(), site)
    with pytest.raises(CeleryTimeout):
        result.get(timeout=0.1)


def test_task_of_a_killed_worker_runs_again_when_its_lease_has_ended(tmp_path):
    assert result_of(celery_app.killed, str(tmp_path / "mark")) == "survived"
    assert locks.get("killed") is None


def test_wrong_arguments_are_refused_when_sending():
    with pytest.raises(TypeError):
        celery_app.skipping.delay()
    with pytest.raises(TypeError):
        celery_app.bound.delay(1, 2)


def test_direct_call_outside_of_a_worker_raises_the_refusal(busy):
    busy("retried")
    with pytest.raises(LockNotAcquired):
        celery_app.retried()


def test_retry_outside_of_any_task_raises_the_refusal(busy):
    busy("plain")
    with pytest.raises(LockNotAcquired, match="'plain'"):
        with_lock("plain", on_busy=retry())(print)()


def test_direct_call_of_an_ignored_task_tells_celery_to_ignore_it(busy):
    busy("ignored")
    with pytest.raises(Ignore, match="'ignored'"):
        celery_app.ignored()


@pytest.mark.parametrize("task", [celery_app.skipping, celery_app.shared, celery_app.bound])
def test_lock_on_top_of_a_task_is_refused_with_the_right_order(task):
    with pytest.raises(TypeError, match=r"below @app\.task or @shared_task"):
        with_lock("x")(task)


def test_lock_on_top_of_a_lazy_task_leaves_its_app_alone():
    app = celery.Celery("lazy", set_as_current=False)

    @app.task
    def later():
        pass

    with pytest.raises(TypeError, match="Celery task"):
        with_lock(later)
    assert not app.finalized


def test_task_keeps_its_name():
    assert celery_app.skipping.name == "tests.contrib.celery_app.skipping"
    assert celery_app.skipping.__name__ == "skipping"
