"""RQ and django-rq, with workers on Valkey."""

from __future__ import annotations

import pytest

pytest.importorskip("rq", reason="pip install rq")

import redis
from rq import Queue, Retry

from django_locks import SKIPPED
from tests.contrib import jobs

WORKER = """
import sys, django
django.setup()
from rq.cli import main
sys.argv = ["rq", "worker", "jobs", "--burst", "--with-scheduler", "--url", {url!r}]
main()
"""


@pytest.fixture
def queue(site):
    with redis.Redis.from_url(site.url) as connection:
        yield Queue("jobs", connection=connection)


def test_jobs_run_under_their_locks_in_either_order_of_decorators(site, queue, busy):
    app = site.load("rq_app")
    for name in ("job:2", "rq:above", "rq:below", "job:raised"):
        busy(name)
    ran, skipped, coroutine = (
        queue.enqueue(function, *args)
        for function, args in ((jobs.skipping, (1,)), (jobs.skipping, (2,)), (jobs.asynchronous, ()))
    )
    above, below = app.above.enqueue(), app.below.enqueue()
    failed = queue.enqueue(jobs.raised)
    retried = queue.enqueue(jobs.raised, retry=Retry(max=1, interval=600))
    site.run("-c", WORKER.format(url=site.url))
    assert ran.return_value() is True
    assert skipped.return_value() == above.return_value() == below.return_value() == SKIPPED
    assert coroutine.return_value() is True
    assert failed.is_failed
    assert "LockNotAcquired" in failed.latest_result().exc_string
    assert retried.get_status().value == "scheduled"
    app.connection.close()


DJANGO_RQ = """
import json, django_rq
from django.core.management import call_command
from tests.contrib import jobs
from tests.contrib.django_rq_app import decorated
queue = django_rq.get_queue("default")
waiting = [queue.enqueue(jobs.skipping, 1), queue.enqueue(jobs.skipping, 2), decorated.enqueue(3)]
call_command("rqworker", "default", burst=True, verbosity=0)
print(json.dumps([job.return_value() for job in waiting]))
"""


def test_django_rq_runs_jobs_under_their_locks(site, busy):
    pytest.importorskip("django_rq", reason="pip install django-rq")
    busy("job:2")
    assert site.script(DJANGO_RQ, QUEUE_APPS="django_rq") == [True, SKIPPED, True]
