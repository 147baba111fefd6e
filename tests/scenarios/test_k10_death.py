"""K10: the holder is killed, stopped or interrupted at a bad moment."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from typing import Any

import pytest

from django_locks import SKIPPED, locks, with_lock
from tests.crew import Spec, process
from tests.faults import failing
from tests.scenarios.actors import eventually, store
from tests.servers import redis as servers
from tests.servers.fixtures_redis import started


def hold(pipe: Any, name: str, ttl: float) -> None:
    with locks.lock(name, ttl=ttl) as guard:
        pipe.send(guard.holder)
        time.sleep(60)


def test_skip_after_a_kill_says_who_holds_it_and_until_when(
    shared_store: Spec, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B037"""
    caplog.set_level(logging.INFO, "django_locks")
    nightly = with_lock(name)(lambda: "ran")
    with process(shared_store, hold, name, 2.4) as worker:
        holder = worker.pipe.recv()  # type: ignore[attr-defined]
        time.sleep(1.2)  # renewed meanwhile
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    killed = time.monotonic()
    assert nightly() is SKIPPED
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert (record.lock, record.holder) == (name, holder)
    assert f"is held by {holder} for 1." in record.message
    assert re.search(r"free in (1\.\d|2\.[0-4]) s unless renewed", record.message)
    eventually(lambda: nightly() == "ran", within=2.4 + 1.5)
    assert time.monotonic() - killed > 1


def run_command(pipe: Any, name: str, fault: str) -> None:
    from django.core.management.base import BaseCommand

    @with_lock(name, ttl=60)
    class Command(BaseCommand):
        requires_system_checks: list[str] = []

        def handle(self, *args: Any, **options: Any) -> None:
            try:
                pipe.send("runs")
                time.sleep(60)
            finally:
                pipe.send(locks.get(name) is not None if not fault else None)

    with failing(store(), *fault.split()):
        Command().run_from_argv(["manage.py", "nightly"])


def test_terminated_command_releases_first_and_exits_143(shared_store: Spec, name: str) -> None:
    """B038"""
    with process(shared_store, run_command, name, "") as command:
        assert command.pipe.recv() == "runs"  # type: ignore[attr-defined]
        os.kill(command.pid, signal.SIGTERM)
        eventually(lambda: locks.get(name) is None, within=5)  # its TTL is 60 s
        assert command.pipe.recv() is True  # type: ignore[attr-defined]  # the body's end was still under the lock
        command.join(5)
        assert command.exitcode == 128 + signal.SIGTERM
    locks.acquire(name).release()


def test_terminated_command_whose_store_fails_ends_all_the_same(shared_store: Spec, name: str) -> None:
    """B038"""
    with process(shared_store, run_command, name, "release") as command:
        assert command.pipe.recv() == "runs"  # type: ignore[attr-defined]
        os.kill(command.pid, signal.SIGTERM)
        command.join(5)
        assert command.exitcode == 128 + signal.SIGTERM
    assert 50 < locks.get(name).remaining < 60
    locks.force_release(name)


def test_terminated_command_whose_server_hangs_ends_in_time(name: str) -> None:
    """B038"""
    for server in started(servers.running(servers.valkey_binary())):
        spec = Spec({"BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": server.url})
        with process(spec, run_command, name, "get") as command:
            assert command.pipe.recv() == "runs"  # type: ignore[attr-defined]
            server.pause()
            os.kill(command.pid, signal.SIGTERM)
            command.join(6)
            assert command.exitcode == 128 + signal.SIGTERM
            server.resume()


def handle_sigterm_oneself(pipe: Any, name: str) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    from django.core.management.base import BaseCommand

    @with_lock(name)
    class Command(BaseCommand):
        requires_system_checks: list[str] = []

        def handle(self, *args: Any, **options: Any) -> None:
            pipe.send("runs")
            while not seen:
                time.sleep(0.01)
            pipe.send("goes on")

    Command().run_from_argv(["manage.py", "nightly"])


def test_handler_of_the_user_is_kept(spec_of: Any, name: str) -> None:
    """B038"""
    with process(spec_of("valkey"), handle_sigterm_oneself, name) as command:
        assert command.pipe.recv() == "runs"  # type: ignore[attr-defined]
        os.kill(command.pid, signal.SIGTERM)
        assert command.pipe.recv() == "goes on"  # type: ignore[attr-defined]
        command.join(5)
        assert command.exitcode == 0
