"""A holder that is stopped in the middle of a fenced transaction, for longer than its TTL."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from django.db import DatabaseError, Error, connections, transaction

from django_locks import LeaseLost, LockNotAcquired, StoreUnavailable, fencing, locks
from tests.crew import Spec, process
from tests.faults import patched
from tests.notes import notes, use, write
from tests.stores.databases import wait_until
from tests.test_lost_update import LONG

TTL = 1.0
STOPS = 200 if LONG else 2


def late_holder(pipe: Any, alias: str, block: str) -> None:
    """Once a word comes: take the lock, write, and say how it ended."""
    locks.get("x")  # the first connection takes a while on a busy machine
    for number in iter(pipe.recv, None):
        try:
            with locks.lock("x", ttl=TTL, wait=30) as guard:
                pipe.send("taken")
                with guard.atomic(using=alias) if block == "fenced" else transaction.atomic(using=alias):
                    write(alias, f"{number} late")
                    pipe.send("written")
                    time.sleep(0.3)  # in which it is stopped
        except (LeaseLost, DatabaseError, StoreUnavailable, LockNotAcquired) as error:
            pipe.send(type(error).__name__ if isinstance(error, LeaseLost) else repr(error))
        else:
            pipe.send("committed")
        connections.close_all()


def begin(pipe: Any, number: int) -> None:
    """Let the late holder take the lock; again where the machine was too slow for the TTL."""
    pipe.send(number)
    while (said := word(pipe)) != "taken":
        assert "too late for the TTL" in said, said
        pipe.send(number)


def word(pipe: Any) -> str:
    assert pipe.poll(30), "no word within 30 s"
    return str(pipe.recv())


STOPPED = [("redis", "postgresql"), ("same", "postgresql"), ("redis", "mariadb"), ("same", "mariadb")]


def stopped_specs(leases: str, data: str, spec_of: Any, settings: Any) -> tuple[Spec, str]:
    alias = use(data, spec_of, settings)
    if leases != "same":
        settings.LOCKS = {"default": spec_of(leases).locks}
    return Spec(settings.LOCKS["default"], {alias: connections.settings[alias]}), alias


@pytest.mark.parametrize(("leases", "data"), STOPPED)
def test_stopped_holder_loses_and_its_successor_does_not_wait(leases, data, spec_of, settings):
    spec, alias = stopped_specs(leases, data, spec_of, settings)
    with process(spec, late_holder, alias, "fenced") as late:
        for number in range(STOPS):
            begin(late.pipe, number)
            assert word(late.pipe) == "written"
            os.kill(late.pid, signal.SIGSTOP)
            try:
                succeed(alias, f"{number} successor")
            finally:
                os.kill(late.pid, signal.SIGCONT)
            assert word(late.pipe) == "LeaseLost"
        assert notes(alias) == sorted(f"{number} successor" for number in range(STOPS))
        late.pipe.send(None)


def test_stopped_holder_without_a_fence_commits_late(spec_of, settings):
    spec, alias = stopped_specs("same", "postgresql", spec_of, settings)
    with process(spec, late_holder, alias, "unfenced") as late:
        begin(late.pipe, 0)
        assert word(late.pipe) == "written"
        os.kill(late.pid, signal.SIGSTOP)
        succeed(alias, "0 successor")
        os.kill(late.pid, signal.SIGCONT)
        assert word(late.pipe) == "LeaseLost"  # it is told, and has committed
        assert notes(alias) == ["0 late", "0 successor"]
        late.pipe.send(None)


def succeed(alias: str, text: str) -> None:
    guard = locks.acquire("x", wait=10)
    start = time.monotonic()
    with guard, guard.atomic(using=alias):
        write(alias, text)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("leases", ["same", "redis"])
def test_on_sqlite_the_successor_waits_for_a_stopped_holder(leases, spec_of, settings):
    spec, alias = stopped_specs(leases, "sqlite", spec_of, settings)
    connections[alias].settings_dict.setdefault("OPTIONS", {})["timeout"] = 20
    with process(spec, late_holder, alias, "fenced") as late:
        begin(late.pipe, 0)
        assert word(late.pipe) == "written"
        os.kill(late.pid, signal.SIGSTOP)
        threading.Timer(3 * TTL, os.kill, [late.pid, signal.SIGCONT]).start()
        succeed_when_it_can(alias, "0 successor")
        assert word(late.pipe) == ("committed" if leases == "same" else "LeaseLost")
        assert notes(alias) == (["0 late", "0 successor"] if leases == "same" else ["0 successor"])
        late.pipe.send(None)


def succeed_when_it_can(alias: str, text: str) -> None:
    with locks.lock("x", wait=20) as guard, guard.atomic(using=alias):
        write(alias, text)


@pytest.mark.parametrize(("leases", "data"), [*STOPPED, ("redis", "sqlite"), ("same", "sqlite")])
def test_holder_stopped_anywhere_never_commits_after_its_successor(leases, data, spec_of, settings):
    spec, alias = stopped_specs(leases, data, spec_of, settings)
    with process(spec, late_holder, alias, "fenced") as late:
        for number in range(STOPS):
            begin(late.pipe, number)
            time.sleep(random.random() * 0.03)
            before = stop_and_succeed(late, alias, number)
            ends = [word(late.pipe)]
            while ends[-1] == "written":
                ends.append(word(late.pipe))
            after = notes(alias)
            assert (f"{number} late" in after) == (f"{number} late" in before), (ends, before, after)
        late.pipe.send(None)


def stop_and_succeed(late: Any, alias: str, number: int) -> list[str]:
    """Return what was in the table at the successor's commit."""
    os.kill(late.pid, signal.SIGSTOP)
    sqlite = connections[alias].vendor == "sqlite"
    try:
        if sqlite:
            time.sleep(2 * TTL)
            os.kill(late.pid, signal.SIGCONT)
        return succeed_and_see(alias, number)
    finally:
        os.kill(late.pid, signal.SIGCONT)


def succeed_and_see(alias: str, number: int) -> list[str]:
    with locks.lock("x", wait=20) as guard, guard.atomic(using=alias):
        before = notes(alias)
        write(alias, f"{number} successor")
    return before


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_holder_stopped_just_before_its_commit_is_ended_by_the_server(kind, spec_of, settings):
    alias = use(kind, spec_of, settings)
    guard = locks.acquire("x", ttl=0.3, renew=False)
    guard.deadline = float("inf")  # its clock stands still
    with pytest.raises(Error), fencing._bounded_stop(connections[alias]) as bound, transaction.atomic(using=alias):
        write(alias, "late")
        bound()
        assert guard.store.lock_row(alias, guard.claim(0))
        thread = threading.Thread(target=lambda: (succeed_when_it_can(alias, "successor"), connections.close_all()))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    assert notes(alias) == ["successor"]


@pytest.mark.parametrize("lost", [False, True])
def test_session_has_its_own_limit_back_afterwards(lost, spec_of, settings):
    alias = use("mariadb", spec_of, settings)
    with connections[alias].cursor() as cursor:
        cursor.execute("SET SESSION idle_transaction_timeout = 77")
    with suppress(LeaseLost), locks.lock("x", enforce=True) as guard, guard.atomic():
        write(alias, "a")
        if lost:
            other = locks.using("default")
            threading.Thread(target=lambda: (other.force_release("x"), connections.close_all())).start()
            wait_until(lambda: locks.get("x") is None)
    assert notes(alias) == ([] if lost else ["a"])
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT @@SESSION.idle_transaction_timeout")
        assert cursor.fetchone() == (77,)


def test_holder_that_waits_for_the_write_lock_of_sqlite_believes_no_longer_than_its_lease(spec_of, settings):
    alias = use("sqlite", spec_of, settings)
    begun, goes_on = threading.Event(), threading.Event()

    def occupy():
        with transaction.atomic(using=alias):
            write(alias, "another")
            begun.set()
            goes_on.wait(10)
        connections.close_all()

    def look():
        time.sleep(0.6)
        seen.append(guard.lost)
        goes_on.set()

    seen: list[bool] = []
    guard = locks.acquire("x", ttl=0.5, renew=False)
    threads = [threading.Thread(target=occupy), threading.Thread(target=look)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    with pytest.raises(LeaseLost), guard.atomic():
        write(alias, "late")
    for thread in threads:
        thread.join()
    assert seen == [True]
    assert notes(alias) == ["another"]


def test_holder_stopped_in_its_last_renewal_on_sqlite_counts_from_before_it(spec_of, settings):
    alias = use("sqlite", spec_of, settings)
    renewals: list[float] = []

    def stopped_the_second_time(lock_row, *args):
        answer = lock_row(*args)
        renewals.append(time.monotonic())
        if len(renewals) == 2:
            time.sleep(0.6)
        return answer

    guard = locks.acquire("x", ttl=0.5, renew=False)
    with patched(guard.store, "lock_row", stopped_the_second_time), guard.atomic():
        time.sleep(0.6)
        assert not guard.lost, "nobody can overtake it"
        write(alias, "a")
    assert notes(alias) == ["a"]
    assert guard.lost
    assert locks.get("x") is None


def test_holder_overtaken_before_its_write_lock_on_sqlite_is_told_so(spec_of, settings):
    alias = use("sqlite", spec_of, settings)
    guard = locks.acquire("x", ttl=0.2, renew=False)
    guard.deadline = float("inf")  # its clock stands still
    wait_until(lambda: locks.get("x") is None)
    with locks.lock("x"), pytest.raises(LeaseLost, match="was overtaken by a newer holder"), guard.atomic():
        write(alias, "late")
    assert notes(alias) == []
