"""The thread that writes the history: what it drops, and what becomes of it at an exit and in a fork."""

from __future__ import annotations

import threading
import weakref

import pytest

from django_locks import recorder
from django_locks.recorder import Recorder


@pytest.fixture(autouse=True)
def recorders(monkeypatch):
    """Let those of a test be the only ones in the process, and end soon."""
    monkeypatch.setattr(recorder, "NAP", 0.05)
    monkeypatch.setattr(recorder, "_recorders", weakref.WeakSet())


class Writer:
    """Writes to a list, once it may, and knows in which thread."""

    def __init__(self):
        self.may, self.began, self.batches, self.threads = threading.Event(), threading.Event(), [], []

    def __call__(self, batch):
        self.began.set()
        assert self.may.wait(10)
        self.batches.append(batch)
        self.threads.append(threading.current_thread())


@pytest.fixture
def writer():
    writer = Writer()
    yield writer
    writer.may.set()


def test_records_that_are_too_many_are_dropped_and_counted_in_the_log(writer, monkeypatch, caplog):
    monkeypatch.setattr(recorder, "MOST", 3)
    records = Recorder(writer)
    records.put(0)
    assert writer.began.wait(10)
    for number in range(1, 6):
        records.put(number)
    assert records.flush(0.01) is False
    writer.may.set()
    assert records.flush(10) is True
    assert writer.batches == [[0], [1, 2, 3]]
    assert [entry.getMessage() for entry in caplog.records] == [
        "2 records of the history of locks were dropped: too many at once."
    ]


def test_record_that_comes_after_the_exit_is_written_by_its_own_thread(writer):
    writer.may.set()
    records = Recorder(writer)
    records.put("before")
    recorder._end()
    assert writer.batches == [["before"]]
    records.put("after")
    assert writer.batches == [["before"], ["after"]]
    assert writer.threads[1] is threading.current_thread() is not writer.threads[0]


def test_record_that_cannot_be_written_at_the_exit_is_a_warning(caplog):
    def fail(batch):
        raise OSError("gone")

    records = Recorder(fail)
    records.end()
    records.put(1)
    assert "1 records of the history of locks could not be written: gone" in caplog.text


def test_child_of_a_fork_writes_by_a_thread_of_its_own_and_nothing_of_its_parents(writer):
    records = Recorder(writer)
    records.put("parent's")
    assert writer.began.wait(10)
    records.put("parent's, too")
    recorder._after_fork()  # as in the child, where the parent's thread is not
    childs = records._write = Writer()
    childs.may.set()
    assert records.flush(0) is True
    records.put("child's")
    assert records.flush(10)
    assert childs.batches == [["child's"]]
