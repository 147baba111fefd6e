"""The history where others write it at the same time, where entries differ, and where there is much of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import QuerySet

from django_locks import clock, history, locks, with_lock
from django_locks.models import Run, Skips
from tests.conftest import MEMORY
from tests.loops import in_loop

MONTH = timedelta(days=30)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _one_with_history_and_one_without(settings):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "HISTORY": MONTH}, "bare": {"BACKEND": MEMORY}}


def test_skips_that_another_process_counts_first_are_added_to_its_row(monkeypatch):
    def update(rows, **changes):
        if not Skips.objects.exists():  # the other is between this look and the next line
            Skips.objects.create(**skip._asdict(), count=5)
            return 0
        return updated(rows, **changes)

    skip, updated = history.Skip("default", "job", clock.wall().replace(microsecond=0), "job"), QuerySet.update
    monkeypatch.setattr(QuerySet, "update", update)
    history._write("default", [skip, skip])
    assert Skips.objects.get().count == 7


def test_entry_without_history_has_neither_runs_nor_skips():
    bare = locks.using("bare")
    guard = bare.acquire("job")
    with_lock("job", using="bare")(print)()
    bare.force_release("job")
    assert guard.release() is False
    assert history.flush()
    assert not Run.objects.exists()
    assert not Skips.objects.exists()
    assert history.prune("bare") == 0


def test_run_that_goes_on_is_not_settled_with_those_that_are_over():
    with locks.lock("live"):
        assert history.flush()
        started = clock.wall()
        Run.objects.create(store="default", name="crashed", fence=1, started=started)
        assert history.settle("default") == 1
        assert {run.name: run.outcome for run in Run.objects.all()} == {"live": "", "crashed": "expired"}
        assert history.settle("default") == 0


def test_much_that_is_too_old_is_forgotten_write_by_write(monkeypatch):
    monkeypatch.setattr(history, "_pruned", {})
    monkeypatch.setattr(history, "PRUNE_BATCH", 2)
    old = {"started": clock.wall() - 2 * MONTH, "ended": clock.wall() - 2 * MONTH, "outcome": "released"}
    for fence in range(5):
        Run.objects.create(store="default", name="old", fence=fence, **old)
    start, left = history.Start("default", "job", 1, "ada", clock.wall()), []
    for fence in range(1, 5):
        history._write("default", [start._replace(fence=fence)])
        left.append(Run.objects.filter(name="old").count())
    assert left == [3, 1, 0, 0]
    assert list(history._pruned) == ["default"], "and now not again for a while"


@in_loop
async def test_event_loop_leaves_its_runs_to_the_recorder_outside_of_tests(monkeypatch):
    recorded = []
    monkeypatch.setattr(history, "may_be_confined", lambda alias: False)  # as where no tests are running
    monkeypatch.setattr(history._recorder, "put", recorded.append)
    async with locks.lock("job") as guard:
        [(database, start)] = recorded
        assert (database, start.name, start.fence) == ("default", "job", guard.fence)
    assert [type(record) for _, record in recorded] == [history.Start, history.End]
    assert recorded[1][1].outcome == "released"
