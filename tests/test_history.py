"""One row a hold, whatever the store, and nobody disturbed by it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import time
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.db import OperationalError, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_locks import clock, history, locks, with_lock
from django_locks.models import Run, Skips
from tests.conftest import DATABASE, MEMORY

MONTH = timedelta(days=30)


@pytest.fixture(params=["memory", "redis", "sqlite", "postgresql", "mariadb"])
def kept(request, spec_of, settings):
    """Let ``locks`` use each store in turn, with a history."""
    spec = spec_of(request.param)
    settings.LOCKS = {"default": {**spec.locks, "HISTORY": MONTH}}
    return request.param


@pytest.fixture
def postgresql_kept(spec_of, settings):
    spec = spec_of("postgresql")
    settings.LOCKS = {"default": {**spec.locks, "HISTORY": MONTH}}
    return spec


def ended(name="job"):
    """Return the runs of the lock once nothing is on its way any more."""
    deadline = time.monotonic() + 10
    while True:
        assert history.flush()
        try:
            return list(history.runs("default", name))
        except OperationalError:  # a loss is told later, and its record locks the table of a database in memory
            assert time.monotonic() < deadline


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_script(spec, script, *, status=0):
    """Run a script in a process of its own, whose default database is that of the store."""
    (alias,) = spec.databases
    settings = {
        "INSTALLED_APPS": ["django_locks"],
        "DATABASES": {"default": {**connections.settings[alias], "TEST": {}}},
        "LOCKS": {"default": {"BACKEND": DATABASE, "HISTORY": 3600}},
    }
    setup = "import django, os, sys; from django.conf import settings; settings.configure(**eval(sys.stdin.read()))\n"
    setup += "django.setup()\nfrom django_locks import history, locks\n"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", setup + textwrap.dedent(script)], input=repr(settings), text=True
    )
    assert run.returncode == status


pytestmark = pytest.mark.django_db(transaction=True)


def test_hold_is_one_run_from_its_start_on(kept):
    guard = locks.acquire("job")
    (run,) = ended()
    assert (run.store, run.name, run.holder, run.fence) == ("default", "job", guard.holder, guard.fence)
    assert (run.outcome, run.ended, run.duration) == ("", None, None)
    guard.release()
    (run,) = ended()
    assert (run.outcome, run.error) == ("released", "")
    assert 0 <= run.duration < 10


def test_failed_hold_names_the_class_of_its_exception(kept):
    with pytest.raises(ZeroDivisionError), locks.lock("job"):
        1 / 0  # noqa: B018
    with pytest.raises(subprocess.TimeoutExpired), locks.lock("job"):
        raise subprocess.TimeoutExpired("x", 1)
    assert [run.error for run in ended()] == ["subprocess.TimeoutExpired", "ZeroDivisionError"]
    assert {run.outcome for run in ended()} == {"failed"}


def test_hold_of_one_who_vanished_is_closed_by_the_next_holder(kept):
    first = locks.acquire("job", ttl=0.3, renew=False)
    wait_for(lambda: first.lost and locks.get("job") is None)
    guard = locks.acquire("job")
    newest, oldest = ended()
    assert (oldest.fence, newest.fence) == (first.fence, guard.fence)
    assert (newest.outcome, newest.ended) == ("", None)
    assert oldest.outcome in ("expired", "lost")
    assert oldest.ended is not None
    guard.release()


def test_broken_hold_says_so_although_its_holder_lost_it(kept):
    guard = locks.acquire("job", ttl=0.6)
    assert locks.force_release("job", fence=guard.fence)
    wait_for(lambda: guard.lost)
    time.sleep(0.05)
    (run,) = ended()
    assert run.outcome == "broken"


def test_lost_hold_is_told_by_its_holder(postgresql_kept):
    guard = locks.acquire("job", ttl=0.2, renew=False)
    wait_for(lambda: guard.lost)
    wait_for(lambda: [run.outcome for run in ended()] == ["lost"])


def test_killed_process_leaves_a_run_that_settles_as_expired(postgresql_kept):
    script = """
        guard = locks.acquire("job", ttl=2)
        history.flush()
        os.kill(os.getpid(), 9)
    """
    run_script(postgresql_kept, script, status=-9)
    wait_for(lambda: locks.get("job") is None)
    history.settle("default", "job")
    (run,) = ended()
    assert run.outcome == "expired"


def test_run_is_written_although_the_callers_transaction_is_rolled_back(postgresql_kept):
    (alias,) = postgresql_kept.databases
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=alias), locks.lock("job"):
        1 / 0  # noqa: B018
    assert [run.outcome for run in ended()] == ["failed"]


def test_run_inside_a_transaction_is_seen_by_all_at_once(postgresql_kept):
    (alias,) = postgresql_kept.databases
    with transaction.atomic(using=alias):
        guard = locks.acquire("job")
        assert history.flush()
        private = connections[alias].copy()
        with private.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM django_locks_run")
            assert cursor.fetchone() == (1,)
        private.close()
        guard.release()


def test_holds_of_a_coroutine_are_runs(kept):
    async def hold():
        async with locks.lock("job"):
            await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            async with locks.lock("job"):
                1 / 0  # noqa: B018
        await asyncio.sleep(0.2)

    async_to_sync(hold)()
    wait_for(lambda: sorted(run.outcome for run in ended()) == ["failed", "released"])


def test_without_history_there_is_nothing_to_pay(spec_of, settings):
    spec = spec_of("postgresql")
    settings.LOCKS = {"default": spec.locks}
    (alias,) = spec.databases
    with locks.lock("warm"):
        pass
    with CaptureQueriesContext(connections[alias]) as queries, locks.lock("job"):
        pass
    assert history.flush()
    assert len(queries) == 2
    assert not Run.objects.using(alias).exists()


def test_holder_is_not_disturbed_when_the_table_is_missing(spec_of, settings, caplog):
    spec = spec_of("sqlite")
    (alias,) = spec.databases
    settings.LOCKS = {"default": {**spec.locks, "HISTORY": MONTH}}
    with connections[alias].cursor() as cursor:
        cursor.execute("ALTER TABLE django_locks_run RENAME TO gone")
    try:
        with caplog.at_level(logging.WARNING, "django_locks"), locks.lock("job") as guard:
            guard.check()
        history.flush()
    finally:
        with connections[alias].cursor() as cursor:
            cursor.execute("ALTER TABLE gone RENAME TO django_locks_run")
    assert "could not be written" in caplog.text


def test_history_of_a_slow_database_keeps_no_holder_waiting(postgresql_kept, monkeypatch):
    monkeypatch.setattr(history, "_apply", lambda database, records: time.sleep(0.5))
    start = time.monotonic()
    for _ in range(10):
        with locks.lock("job"):
            pass
    assert time.monotonic() - start < 2
    assert history.flush()


def test_late_news_of_a_release_replaces_the_guess_of_the_next_holder(settings):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "HISTORY": MONTH}}
    now = clock.wall()
    one, two = (history.Start("default", "job", fence, "ada", now) for fence in (1, 2))
    history._write("default", [one])
    history._write("default", [two])
    assert Run.objects.get(fence=1).outcome == "expired"
    history._write("default", [history.End("default", "job", 1, now, "released")])
    assert Run.objects.get(fence=1).outcome == "released"
    history._write("default", [history.End("default", "job", 1, now, "lost")])
    assert Run.objects.get(fence=1).outcome == "released"


def test_skips_are_counted_by_the_hour(kept):
    @with_lock("job")
    def job(): ...

    guard = locks.acquire("job")
    for _ in range(3):
        job()
    guard.release()
    assert history.flush()
    assert sum(Skips.objects.using(history.database_of("default")).values_list("count", flat=True)) == 3
    assert len(ended()) == 1


def test_prefix_and_store_tell_the_runs_of_a_name_apart(settings):
    memory = {"BACKEND": MEMORY, "HISTORY": MONTH}
    settings.LOCKS = {"default": {**memory, "KEY_PREFIX": "prod"}, "other": memory}
    for service in (locks, locks.using("other")):
        with service.lock("job"):
            pass
    assert history.flush()
    assert [run.name for run in history.runs("default", "job")] == ["prod:job"]
    assert [run.name for run in history.runs("other", "job")] == ["job"]


def test_prune_forgets_what_is_too_old_and_keeps_what_goes_on(settings, monkeypatch):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "HISTORY": MONTH}}
    monkeypatch.setattr(history, "PRUNE_BATCH", 2)
    with locks.lock("live"):
        assert history.flush()
        Run.objects.update(started=clock.wall() - 2 * MONTH)
        old = {"store": "default", "holder": "", "started": clock.wall() - 2 * MONTH}
        for fence in range(5):
            Run.objects.create(name="old", fence=fence, ended=clock.wall() - 2 * MONTH, outcome="released", **old)
        Run.objects.create(name="crashed", fence=1, **old)
        Run.objects.create(name="long", fence=1, ended=clock.wall(), outcome="released", **old)
        Skips.objects.create(store="default", name="old", hour=clock.wall() - 2 * MONTH, count=1)
        assert history.prune("default") == 6
        assert sorted(Run.objects.values_list("name", flat=True)) == ["live", "long"]
        assert not Skips.objects.exists()


def test_what_is_too_old_is_forgotten_now_and_then_by_those_who_write(settings, monkeypatch):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "HISTORY": MONTH}}
    monkeypatch.setattr(history, "_pruned", {})
    old = clock.wall() - 2 * MONTH
    Run.objects.create(store="default", name="old", fence=1, started=old, ended=old, outcome="released")
    with locks.lock("job"):
        pass
    assert history.flush()
    assert list(Run.objects.values_list("name", flat=True)) == ["job"]


@pytest.mark.parametrize("wrong", ["30 d", 0, -1, True, float("nan")])
def test_wrong_history_is_a_check_message(wrong, settings):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "HISTORY": wrong}}
    assert [message.id for message in run_checks(tags=["django_locks"])] == ["django_locks.E004"]


def test_history_without_the_app_is_a_check_message(settings):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "HISTORY": 60}}
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_locks"]
    assert [message.id for message in run_checks(tags=["django_locks"])] == ["django_locks.E005"]


def test_what_is_left_is_written_at_the_exit_of_the_interpreter(postgresql_kept):
    script = """
        guard = locks.acquire("job")
    """
    run_script(postgresql_kept, script)
    assert [run.outcome for run in ended()] == ["released"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_records_its_own_holds(postgresql_kept):
    with locks.lock("parent"):
        assert history.flush()
    script = """
        with locks.lock("parent"):
            child = os.fork()
            if child == 0:
                with locks.lock("child"):
                    pass
                os._exit(0 if history.flush() else 1)
            assert os.waitpid(child, 0)[1] == 0
    """
    run_script(postgresql_kept, script)
    assert [run.outcome for run in ended("child")] == ["released"]
    assert [run.outcome for run in ended("parent")] == ["released", "released"]
