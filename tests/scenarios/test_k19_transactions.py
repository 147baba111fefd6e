"""K19: the lock's row shares a connection, a snapshot or a transaction with the caller's own work."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_locks import AlreadyHeld, locks
from tests.notes import in_thread, notes, use, write
from tests.test_lost_update import LONG, add_step, last_step, lost_updates, make_steps

ROUNDS = 50 if LONG else 15


@pytest.fixture(params=["postgresql", "mariadb"])
def alias(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> str:
    return use(request.param, spec_of, settings)


def test_refusal_inside_a_transaction_leaves_it_whole(alias: str) -> None:
    """B076"""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.lock("p"):
            held.set()
            done.wait(30)
        connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    with transaction.atomic(using=alias):
        write(alias, "before")
        assert locks.try_acquire("p") is None
        assert notes(alias) == ["before"]
        write(alias, "after")
    done.set()
    holder.join()
    assert notes(alias) == ["after", "before"]


def view(request: HttpRequest) -> HttpResponse:
    alias = request.GET["alias"]
    with locks.lock("counter", wait=60):
        add_step(alias, last_step(alias) + 1)
    return HttpResponse()


urlpatterns = [path("", view)]


def test_counter_is_exact_under_atomic_requests(alias: str, settings: Any) -> None:
    """B077"""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = []
    connections.settings[alias]["ATOMIC_REQUESTS"] = True
    make_steps(alias)

    def work() -> None:
        for _ in range(ROUNDS):
            assert Client().get("/", {"alias": alias}).status_code == 200

    workers = [threading.Thread(target=in_thread, args=[work]) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert last_step(alias) == 2 * ROUNDS
    assert lost_updates(alias) == 0


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "sqlite"])
def test_test_case_works_and_leaves_nothing(kind: str, spec_of: Any, settings: Any, monkeypatch: Any) -> None:
    """B080"""
    alias = use(kind, spec_of, settings)
    job = locks.with_lock("job")(lambda: "done")
    for _ in range(2):
        with transaction.atomic(using=alias):
            connections[alias].atomic_blocks[-1]._from_testcase = True
            guard = locks.acquire("job")
            assert locks.try_acquire("job") is None
            with pytest.raises(AlreadyHeld):
                locks.acquire("job", wait=None)
            assert not job()
            monkeypatch.setattr("django_locks.clock.now", lambda: 0.0)  # time is frozen
            assert guard.release() is True
            monkeypatch.undo()
            assert job() == "done"
            transaction.set_rollback(True, using=alias)
        assert list(locks.leases()) == []
