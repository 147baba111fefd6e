"""Replicas of celery beat, of which one sends: what they send is read from the queue, without a worker."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

pytest.importorskip("celery", reason="pip install celery")

import redis
from celery import Celery
from celery.schedules import crontab
from django.core.exceptions import ImproperlyConfigured

from django_locks import locks
from django_locks.conf import entries
from django_locks.contrib.celery import LeaderScheduler
from tests.contrib.conftest import end, eventually
from tests.faults import failing, patched

TTL = 3
LEADER = "celery:beat:contrib"


class Ticks(threading.Thread):
    """Reads what beat sends to the queue: the task of each message, and when it came."""

    def __init__(self, url, queue):
        super().__init__(daemon=True)
        self.client = redis.Redis.from_url(url)
        self.queue = queue
        self.client.delete(queue)
        self.seen = []
        self.ended = False

    def run(self):
        with self.client:
            while not self.ended:
                message = self.client.blpop([self.queue], timeout=0.5)
                if message is not None:
                    self.seen.append((json.loads(message[1])["headers"]["task"], time.time()))

    def moments(self, task):
        return [moment for name, moment in self.seen if name == task]

    def more(self, task, count, site):
        """Wait until so many more have come."""
        wanted = len(self.moments(task)) + count
        eventually(lambda: len(self.moments(task)) >= wanted, site)


@pytest.fixture
def read(site):
    """Return what starts reading a queue."""
    started = []

    def start(queue):
        started.append(Ticks(site.url, queue))
        started[-1].start()
        return started[-1]

    yield start
    for ticks in started:
        ticks.ended = True
        ticks.join()


@pytest.fixture
def replicas(site):
    """Return what starts replicas of beat and waits for a leader; killed at the end."""
    started = []
    locks.force_release(LEADER)

    def start(name, scheduler, count, **env):
        started.extend(start_beat(site, f"{name}-{replica}", scheduler, **env) for replica in range(count))
        for replica in range(count):
            log = site.folder / f"{name}-{replica}.log"
            eventually(lambda log=log: "beat: Starting" in log.read_text(), site)
        return started

    yield start
    for beat in started:
        end(beat)


def start_beat(site, name, scheduler, **env):
    return site.start(
        *("celery", "-A", "tests.contrib.celery_app", "beat", "-l", "INFO", "-S", scheduler),
        *("-s", str(site.folder / f"{name}-schedule"), f"--pidfile={site.folder / name}.pid"),
        name=name,
        QUEUE_TTL=str(TTL),
        **env,
    )


def leading(site, beats):
    """Return the replica that leads, by its pid in the holder's label."""
    lease = eventually(lambda: locks.get(LEADER), site)
    return next(beat for beat in beats if f":{beat.pid}:" in lease.holder)


@pytest.mark.timeout(150)
def test_replicas_send_each_tick_once_and_another_follows(site, read, replicas):
    ticks = read("ticks")
    started = replicas("beat", "django_locks.contrib.celery:LeaderScheduler", 3)
    ticks.more("tick", 1, site)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        leader = leading(site, started)
        os.kill(leader.pid, number)
        ticks.more("tick", 2, site)
        if number == signal.SIGSTOP:
            os.kill(leader.pid, signal.SIGCONT)
            ticks.more("tick", 1, site)
    seconds = [int(moment) for moment in ticks.moments("tick")]
    assert len(set(seconds)) == len(seconds), f"doubled: {seconds}"
    gaps = gaps_of(seconds)
    assert max(gaps) <= TTL + 1, f"lost: {seconds}"
    assert sum(gap > 1 for gap in gaps) <= 3, f"lost without need: {seconds}"
    assert ticks.moments("rare") == []


def gaps_of(moments):
    return [after - earlier for earlier, after in pairwise(moments)]


def app_with(**conf):
    app = Celery("beat", set_as_current=False)
    app.conf.update(beat_schedule={}, **conf)
    return app


def scheduler_of(app, tmp_path, **options):
    return LeaderScheduler(app, schedule_filename=str(tmp_path / "schedule"), **options)


@pytest.mark.parametrize(("conf", "options"), [({"beat_max_loop_interval": 4}, {}), ({}, {"max_interval": 4})])
def test_ttl_shorter_than_three_ticks_is_refused(conf, options, tmp_path):
    with pytest.raises(ImproperlyConfigured, match="3 ticks"):
        scheduler_of(app_with(**conf), tmp_path, lazy=True, **options)


def test_ticks_are_a_third_of_the_ttl_unless_told(tmp_path):
    assert scheduler_of(app_with(), tmp_path, lazy=True).max_interval == pytest.approx(10 / 3)
    assert scheduler_of(app_with(), tmp_path, lazy=True, max_interval=2).max_interval == 2


@pytest.fixture
def scheduler(site, tmp_path, db):
    """One replica in this process, whose entries are collected when it sends them."""
    locks.force_release("celery:beat:beat")
    app = app_with()
    app.conf.beat_schedule = {
        "hourly": {"task": "hourly", "schedule": timedelta(hours=1)},
        "crontab": {"task": "crontab", "schedule": crontab()},
    }
    scheduler = scheduler_of(app, tmp_path)
    scheduler.sent = []
    scheduler.send_task = lambda name, *args, **kwargs: scheduler.sent.append(name)
    scheduler.producer = None
    yield scheduler
    scheduler.close()


def make_due(scheduler):
    for entry in scheduler.schedule.values():
        entry.last_run_at -= timedelta(days=1)


def test_candidate_counts_what_is_due_as_sent_by_the_leader(scheduler):
    guard = locks.acquire("celery:beat:beat")
    make_due(scheduler)
    assert scheduler.tick() <= 10 / 3
    guard.release()
    scheduler.tick()
    assert locks.get("celery:beat:beat") is not None
    assert scheduler.sent == []
    assert scheduler.schedule["hourly"].last_run_at == hour_of(datetime.now(UTC))


def hour_of(moment):
    return moment.replace(minute=0, second=0, microsecond=0)


def test_candidate_looks_again_as_soon_as_the_lease_can_end(scheduler):
    guard = locks.acquire("celery:beat:beat", ttl=0.5, renew=False)
    assert scheduler.tick() <= 0.51
    guard.release()


def test_candidate_that_does_not_learn_who_leads_looks_again_after_a_tick(scheduler):
    guard = locks.acquire("celery:beat:beat", ttl=0.5, renew=False)
    with patched(entries("default").store, "get", lambda original, name: None):
        assert scheduler.tick() == pytest.approx(10 / 3)
    assert scheduler._guard is None
    guard.release()


def test_leader_sends_what_is_due_in_the_tick_it_belongs_to(scheduler):
    scheduler.tick()
    make_due(scheduler)
    scheduler._heap = None
    while scheduler.tick() == 0:
        pass
    assert sorted(scheduler.sent) == ["crontab", "hourly"]
    assert scheduler.schedule["hourly"].last_run_at == hour_of(datetime.now(UTC))


def test_leader_that_lost_its_lease_sends_nothing_more(scheduler, caplog):
    scheduler.tick()
    make_due(scheduler)
    scheduler._heap = None
    locks.force_release("celery:beat:beat")
    with pytest.raises(Exception, match="not ours"):
        scheduler._guard.extend()
    scheduler.apply_entry(scheduler.schedule["hourly"])
    assert scheduler.sent == []
    assert "Not sent: hourly" in caplog.text


def test_closed_scheduler_gives_the_lead_back(scheduler):
    scheduler.tick()
    scheduler.close()
    scheduler.setup_schedule()
    assert locks.get("celery:beat:beat") is None


def test_store_that_cannot_be_asked_ends_neither_beat_nor_sends(scheduler, caplog):
    from django_locks import conf

    make_due(scheduler)
    with failing(conf.entries("default").store, "acquire"):
        assert scheduler.tick() > 0
    assert scheduler.sent == []
    assert "sends nothing" in caplog.text
    scheduler.tick()
    with failing(conf.entries("default").store, "release"):
        scheduler.close()
    assert "free when its TTL" in caplog.text
    scheduler.setup_schedule()


def test_entry_that_cannot_tell_when_it_is_due_ends_nothing(scheduler, caplog):
    def broken(entry):
        raise ValueError("no such day")

    scheduler.is_due = broken
    scheduler.follow()
    assert "cannot tell when hourly is due" in caplog.text


PERIODIC = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
PeriodicTask.objects.create(name="database", task="database", interval=every, queue="dbticks")
print(1)
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="django-celery-beat 2.9 wants Django below 6.1")
def test_replicas_of_the_database_scheduler_share_its_runs(site, read, replicas):
    pytest.importorskip("django_celery_beat", reason="pip install django-celery-beat")
    site.script(PERIODIC, QUEUE_APPS="django_celery_beat")
    ticks = read("dbticks")
    scheduler = "django_locks.contrib.django_celery_beat:LeaderDatabaseScheduler"
    started = replicas("db", scheduler, 2, QUEUE_APPS="django_celery_beat")
    ticks.more("database", 2, site)
    os.kill(leading(site, started).pid, signal.SIGKILL)
    ticks.more("database", 3, site)
    gaps = gaps_of(ticks.moments("database"))
    assert min(gaps) > 0.5, f"doubled: {gaps}"
    assert max(gaps) <= TTL + 1.5, f"lost: {gaps}"
