"""The edges of a command under a lock: how it ends by SIGTERM, in this process."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading

import pytest

from django_locks import commands
from django_locks.commands import terminated_in_order, terminated_in_order_async


@pytest.fixture
def ends(monkeypatch):
    """Collect the exit codes with which the process would have ended at once; an event tells that it did."""
    codes, ended = [], threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    return codes, ended


class Stream(io.StringIO):
    flushed = False

    def flush(self):
        self.flushed = True


class Closed(io.StringIO):
    def flush(self):
        raise BrokenPipeError


def test_store_that_hangs_after_a_sigterm_does_not_keep_the_process(ends, monkeypatch, caplog):
    codes, ended = ends
    out = Stream()
    monkeypatch.setattr(commands, "RELEASE_TIME", 0.05)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Closed())
    with pytest.raises(SystemExit) as end, terminated_in_order() as hurry:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            hurry()
            assert ended.wait(10), "a release that hangs"
    assert end.value.code == 143
    assert (codes, out.flushed) == ([143], True)
    assert "has not answered in time" in caplog.text
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_release_without_a_sigterm_may_take_its_time(ends, monkeypatch):
    codes, ended = ends
    monkeypatch.setattr(commands, "RELEASE_TIME", 0.05)
    with terminated_in_order() as hurry:
        hurry()
        assert not ended.wait(0.2)
    assert codes == []


def test_handler_of_somebody_else_is_left_alone_in_a_loop_too():
    async def main():
        async with asyncio.timeout(10):
            with terminated_in_order_async():
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0)
                return "went on"

    caught = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        assert asyncio.run(main()) == "went on"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM]


def test_sigterm_ends_a_task_with_143_and_another_cancellation_is_one():
    async def main(stop):
        with terminated_in_order_async():
            asyncio.get_running_loop().call_soon(stop, asyncio.current_task())
            await asyncio.sleep(10)

    with pytest.raises(SystemExit) as end:
        asyncio.run(main(lambda task: signal.raise_signal(signal.SIGTERM)))
    assert end.value.code == 143
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main(lambda task: task.cancel()))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_loop_of_another_thread_has_no_handler():
    async def main():
        with terminated_in_order_async():
            seen.append(signal.getsignal(signal.SIGTERM))

    seen = []
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
