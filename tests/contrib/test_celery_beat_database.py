"""django-celery-beat's scheduler with one leader: replicas in this process, whose entries are in its database."""

from __future__ import annotations

import sys
from datetime import timedelta

import pytest

if sys.version_info >= (3, 12):
    pytest.skip("django-celery-beat 2.9 wants Django below 6.1", allow_module_level=True)
pytest.importorskip("django_celery_beat", reason="pip install django-celery-beat")

from celery import Celery
from django.apps import apps
from django.db import connection
from django.utils import timezone

from django_locks import locks

LEADER = "celery:beat:replicated"
DAY = timedelta(days=1)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _tables(settings, transactional_db):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_celery_beat"]
    models = [model for model in apps.get_app_config("django_celery_beat").get_models() if model._meta.managed]
    with connection.schema_editor() as editor:
        for model in models:
            editor.create_model(model)
    yield
    with connection.schema_editor() as editor:
        for model in reversed(models):
            editor.delete_model(model)


@pytest.fixture
def task():
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    every = IntervalSchedule.objects.create(every=1, period="hours")
    return PeriodicTask.objects.create(name="hourly", task="hourly", interval=every, last_run_at=timezone.now() - DAY)


@pytest.fixture
def replica():
    """Return what makes one more replica, which collects what it sends."""
    from django_locks.contrib.django_celery_beat import LeaderDatabaseScheduler

    made = []
    locks.force_release(LEADER)

    def make(**options):
        app = Celery("replicated", set_as_current=False)
        app.conf.result_expires = None  # no entry of its own
        scheduler = LeaderDatabaseScheduler(app, **options)
        scheduler.sent, scheduler.producer = [], None
        scheduler.send_task = lambda name, *args, **kwargs: scheduler.sent.append(name)
        made.append(scheduler)
        return scheduler

    yield make
    for scheduler in made:
        scheduler._dirty.clear()
        scheduler.close()


def tick(scheduler):
    """Tick until nothing is due, and return what was sent."""
    del scheduler.sent[:]
    while scheduler.tick() == 0:
        pass
    return scheduler.sent


def test_leader_writes_down_each_run_at_once(task, replica):
    leader = replica()
    for count in (1, 2):
        assert tick(leader) == ["hourly"]
        task.refresh_from_db()
        assert task.total_run_count == count
        assert timezone.now() - task.last_run_at < timedelta(minutes=1)
        assert leader._heap[0].entry.last_run_at == task.last_run_at, "and not the full hour"
        assert tick(leader) == []
        leader.schedule["hourly"].last_run_at -= DAY
        leader._heap = None


def test_successor_knows_the_runs_of_the_leader(task, replica):
    first, second = replica(), replica()
    assert tick(first) == ["hourly"]
    assert tick(second) == []
    first.close()
    assert tick(second) == []
    assert locks.get(LEADER).fence == second._guard.fence


def test_what_came_due_while_nobody_led_is_sent_late_and_once(task, replica):
    first, second = replica(), replica()
    assert (tick(first), tick(second)) == (["hourly"], [])
    first.close()
    task.refresh_from_db()
    task.last_run_at -= DAY
    task.save()  # by hand, as in the admin: all replicas are to read it again
    assert tick(second) == ["hourly"]
    assert tick(first) == []


def test_candidate_that_has_led_before_does_not_undo_the_runs_of_the_leader(task, replica):
    candidate, leader = replica(), replica()
    assert tick(leader) == ["hourly"]
    candidate._dirty.add("hourly")  # of its own time, when the task had not yet run
    assert tick(candidate) == []
    assert candidate.schedule["hourly"].total_run_count == 1
    task.refresh_from_db()
    assert task.total_run_count == 1


def test_ticks_are_those_of_django_celery_beat_unless_a_third_of_the_ttl_is_shorter(replica, monkeypatch):
    from django_locks.contrib.django_celery_beat import LeaderDatabaseScheduler

    assert replica().max_interval == pytest.approx(10 / 3)
    monkeypatch.setattr(LeaderDatabaseScheduler, "leader_ttl", 600)
    assert replica().max_interval == 5
    assert replica(max_interval=2).max_interval == 2
