"""django-q2, with a cluster over the ORM."""

from __future__ import annotations

import pytest

pytest.importorskip("django_q", reason="pip install django-q2")

from django_locks import SKIPPED

SEND = """
import json
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_q.tasks import async_task
from tests.contrib import jobs
print(json.dumps([async_task(jobs.skipping, 1), async_task("tests.contrib.jobs.skipping", 2), async_task(jobs.raised)]))
"""

READ = """
import json, time
from django_q.models import Task
ids = {ids!r}
for _ in range(300):
    if Task.objects.count() >= len(ids):
        break
    time.sleep(0.1)
tasks = [Task.objects.get(id=each) for each in ids]
print(json.dumps([[task.success, str(task.result)] for task in tasks]))
"""


def test_tasks_run_under_their_locks(site, busy):
    busy("job:2")
    busy("job:raised")
    ids = site.script(SEND, QUEUE_APPS="django_q")
    site.start("django", "qcluster", name="qcluster", QUEUE_APPS="django_q")
    ran, skipped, raised = site.script(READ.format(ids=ids), QUEUE_APPS="django_q")
    assert ran == [True, "True"]
    assert skipped == [True, SKIPPED]
    assert raised[0] is False
    assert "job:raised" in raised[1]
