"""APScheduler, alone and with the job store of django-apscheduler."""

from __future__ import annotations

import pytest

pytest.importorskip("apscheduler", reason="pip install apscheduler")

import asyncio
from contextlib import ExitStack

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from django_locks import SKIPPED, locks, with_lock
from tests.contrib import jobs
from tests.contrib.conftest import eventually

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning:apscheduler")]


@pytest.fixture
def scheduler():
    """Return what starts a scheduler and collects what its jobs return."""
    with ExitStack() as stack:

        def start():
            scheduler = BackgroundScheduler(timezone="UTC")
            scheduler.values = []
            scheduler.add_listener(lambda event: scheduler.values.append(event.retval), EVENT_JOB_EXECUTED)
            scheduler.start()
            stack.callback(scheduler.shutdown)
            return scheduler

        yield start


def test_one_of_two_schedulers_runs_each_tick(scheduler, tmp_path):
    schedulers = [scheduler(), scheduler()]
    marks = tmp_path / "marks"
    for one in schedulers:
        one.add_job(jobs.counted, "cron", second="*", args=[str(marks)])
    values = eventually(lambda: len(found := [value for one in schedulers for value in one.values]) >= 6 and found)
    assert values.count(SKIPPED) in (2, 3, 4)
    assert abs(len(marks.read_text()) - values.count(True)) <= 1


def test_decorated_job_below_scheduled_job_runs_under_the_lock(scheduler):
    one = scheduler()

    @one.scheduled_job("date")
    @with_lock("apscheduler:below")
    def job():
        return locks.get("apscheduler:below") is not None

    assert eventually(lambda: one.values) == [True]


def test_coroutine_job_runs_under_the_lock():
    values = []

    async def main():
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_listener(lambda event: values.append(event.retval), EVENT_JOB_EXECUTED)
        scheduler.add_job(jobs.asynchronous)
        scheduler.start()
        for _ in range(200):
            await asyncio.sleep(0.05)
            if values:
                break
        scheduler.shutdown()

    asyncio.run(main())
    assert values == [True]


DJANGO_APSCHEDULER = """
import json, time
from django.core.management import call_command
call_command("migrate", verbosity=0)
from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler
from django_apscheduler.jobstores import DjangoJobStore
from django_apscheduler.models import DjangoJob
from tests.contrib import jobs
scheduler, values = BackgroundScheduler(timezone="UTC"), []
scheduler.add_jobstore(DjangoJobStore(), "default")
scheduler.add_listener(lambda event: values.append(event.retval), EVENT_JOB_EXECUTED)
for number in (1, 2):
    scheduler.add_job(jobs.skipping, "interval", seconds=0.5, args=[number], id=str(number))
scheduler.start()
for _ in range(100):
    time.sleep(0.1)
    if len(values) >= 4:
        break
stored = DjangoJob.objects.count()
scheduler.shutdown()
print(json.dumps([stored, sorted({str(value) for value in values})]))
"""


def test_django_apscheduler_stores_and_runs_jobs_under_their_locks(site, busy):
    pytest.importorskip("django_apscheduler", reason="pip install django-apscheduler")
    busy("job:2")
    stored, values = site.script(DJANGO_APSCHEDULER, QUEUE_APPS="django_apscheduler")
    assert stored == 2
    assert values == ["True", SKIPPED]
