"""``django.tasks`` or its backport: at once, and by the worker of django-tasks-db."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

if not find_spec("django.tasks"):
    pytest.importorskip("django_tasks", reason="pip install django-tasks, or Django 6")
BACKEND = "django.tasks" if find_spec("django.tasks") else "django_tasks"
APPS = "django_tasks_db" if find_spec("django.tasks") else "django_tasks,django_tasks_db"

from django_locks import SKIPPED  # noqa: E402

IMMEDIATE = """
import asyncio, json
from tests.contrib import django_tasks_app as app
results = [app.below.enqueue(1), app.above.enqueue(1), app.bare.enqueue(), app.asynchronous.enqueue()]
results += [app.below.enqueue(2), app.above.enqueue(number=2), app.raised.enqueue()]
def outcome(each):
    return [each.status, each.errors[0].exception_class_path if each.errors else each.return_value]
print(json.dumps([*map(outcome, results), app.above.priority, app.below.call(1), app.above.call(2)]))
"""

BY_WORKER = """
import json
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.contrib import django_tasks_app as app
waiting = [task.enqueue(number) for number in (1, 2) for task in (app.below, app.above)] + [app.asynchronous.enqueue()]
call_command("db_worker", batch=True, reload=False, startup_delay=False, verbosity=0)
results = []
for each in waiting:
    each.refresh()
    results.append(each.return_value if each.status == "SUCCESSFUL" else each.errors[0].traceback)
print(json.dumps(results))
"""


def test_tasks_run_at_once_under_their_locks_in_either_order(site, busy):
    busy("tasks:2")
    busy("tasks:raised")
    answers = site.script(
        IMMEDIATE,
        QUEUE_APPS="django_tasks" if BACKEND == "django_tasks" else "",
        QUEUE_TASKS=f"{BACKEND}.backends.immediate.ImmediateBackend",
    )
    assert answers[:4] == [["SUCCESSFUL", True]] * 4
    assert answers[4:6] == [["SUCCESSFUL", SKIPPED]] * 2
    assert answers[6] == ["FAILED", "django_locks.exceptions.LockNotAcquired"]
    assert answers[7:] == [5, True, SKIPPED]
    assert json.dumps(answers[5])


def test_worker_runs_tasks_under_their_locks_in_either_order(site, busy):
    pytest.importorskip("django_tasks_db", reason="pip install django-tasks-db")
    busy("tasks:2")
    answers = site.script(BY_WORKER, QUEUE_APPS=APPS, QUEUE_TASKS="django_tasks_db.DatabaseBackend")
    assert answers == [True, True, SKIPPED, SKIPPED, True]
