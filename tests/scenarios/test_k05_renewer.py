"""K05: the background thread outlives its purpose, or slows down or breaks the code that ends it."""

from __future__ import annotations

import threading
import time

import pytest

from django_locks import locks
from tests.crew import Spec
from tests.faulty_sites import Script
from tests.scenarios.actors import eventually


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise KeyError('the work failed')", 1)])
def test_renewer_keeps_no_process_alive_and_hides_no_error(
    end: str, status: int, shared_store: Spec, name: str
) -> None:
    """B017"""
    script = Script(shared_store, f"guard = locks.acquire({name!r}, ttl=2)\ntime.sleep(1)\ndone()\n{end}\n")
    code, out, err, ended = script.end()
    assert code == status, err
    assert ended - float(out.split()[-1]) < 2
    assert not end or err.rstrip().endswith("KeyError: 'the work failed'")
    assert err.count("Traceback") == status
    eventually(lambda: locks.get(name) is None, within=2.2)


def test_release_waits_for_no_renewer(any_store: Spec, name: str) -> None:
    """B019"""
    locks.acquire(f"{name}:warm").release()
    threads = threading.active_count()
    start = time.monotonic()
    guard = locks.acquire(name, ttl=30)
    time.sleep(0.1)
    took = []
    for _ in range(100):
        before = time.monotonic()
        assert guard.release() is True
        took.append(time.monotonic() - before)
        guard = locks.acquire(name, ttl=30)
    guard.release()
    assert sorted(took)[-3] < 0.2, "all but what a busy machine delays"
    assert time.monotonic() - start < 5
    assert threading.active_count() <= threads + 2
