"""``manage.py locks watch``, in this process: what it draws and prints from one look to the next."""

from __future__ import annotations

import io
import json
import re

import pytest
from django.core.management import call_command

from django_locks import clock, locks
from django_locks.conf import entries
from tests.cli import end
from tests.faults import failing

pytestmark = pytest.mark.usefixtures("two_stores")

SCREEN = re.compile(r"\x1b\[\?1049h\x1b\[\?25l(.*)\x1b\[\?25h\x1b\[\?1049l", re.DOTALL)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def between(monkeypatch):
    """Let these callables be called between the looks, one each, and Ctrl-C come after the last."""

    def do(*steps):
        left = iter(steps)

        def sleep(seconds):
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(clock, "sleep", sleep)

    return do


def pictures(*args):
    """Return what is drawn on a terminal: the lines of each picture."""
    out = Terminal()
    call_command("locks", "watch", *args, stdout=out, stderr=io.StringIO())
    (drawn,) = SCREEN.fullmatch(out.getvalue()).groups()
    return [picture.split("\x1b[K")[0:-1] for picture in drawn.replace("\x1b[K\n", "\x1b[K").split("\x1b[H")[1:]]


@pytest.fixture(autouse=True)
def _size(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "8")


def test_table_is_drawn_anew_at_each_look(between, held):
    guard = held("cron:nightly")
    between(guard.release, lambda: held("東京"))
    first, second, third = pictures()
    assert first[0].split() == ["NAME", "STATE", "HOLDER", "AGE", "REMAINING", "FENCE"]
    assert first[1].split()[:3] == ["cron:nightly", "held", "web-1"]
    assert re.fullmatch("[0-9:]{8} UTC  1 taken  store default  Ctrl-C ends", first[-1])
    assert [line.split()[:1] for line in second[:-1]] == [["NAME"], []]
    assert third[1].split()[:2] == ["東京", "held"]


def test_table_of_all_stores_names_them_and_those_that_fail(between, held):
    held("a")
    held("b", locks.using("other"))
    between()
    [picture] = pictures("--all")
    assert [line.split()[:2] for line in picture[:3]] == [["STORE", "NAME"], ["default", "a"], ["other", "b"]]
    assert "store default, other" in picture[-1]
    between()
    with failing(entries("other").store, "leases"):
        [picture] = pictures("--all")
    assert [line.split()[0] for line in picture[:2]] == ["STORE", "default"]
    assert "connection reset" in picture[2]


def test_table_never_outgrows_the_terminal(between, held, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    for number in range(20):
        held(f"lock {number:02} with a rather long name")
    between()
    [picture] = pictures()
    assert len(picture) == 8
    assert max(map(len, picture)) == 40
    assert "20 taken, 15 mor" in picture[-1]


def test_text_that_steers_the_terminal_is_drawn_visibly(between, held):
    held("a\u202eb")
    between()
    [picture] = pictures()
    assert picture[1].startswith("a\\u202eb ")


def test_store_that_fails_is_named_once_until_it_answers_again(between, held):
    guard, store = held("a"), entries("default").store
    outage = failing(store, "leases")
    between(lambda: None, outage.close, guard.release, lambda: outage.push(failing(store, "leases")))
    with outage:
        lines = end("watch").out.splitlines()
    assert [line.split()[3] for line in lines] == ["unreachable", "held", "freed", "unreachable"]
    assert "connection reset" in lines[0]
    assert re.search(f"held     a  store default  web-1  fence {guard.fence}$", lines[1])


def test_change_is_told_in_json(between, held):
    guard = held("a")
    between(lambda: locks.pause("b", 60, note="upgrade"), guard.release)
    with failing(entries("other").store, "leases"):
        changes = [json.loads(line) for line in end("watch", "--all", "--json").out.splitlines()]
    said = [(one["change"], one["store"], one["lease"] and one["lease"]["name"]) for one in changes]
    assert said == [
        ("held", "default", "a"),
        ("unreachable", "other", None),
        ("paused", "default", "b"),
        ("freed", "default", "a"),
    ]
    assert ["connection reset" in one["message"] for one in changes] == [False, True, False, False]


def test_reader_that_has_gone_ends_it_quietly(between, held, monkeypatch):
    held("a")
    between()
    out = Terminal()

    def write(text):
        if "NAME" in text:
            raise BrokenPipeError
        return io.StringIO.write(out, text)

    monkeypatch.setattr(out, "write", write)
    call_command("locks", "watch", stdout=out, stderr=io.StringIO())
    assert SCREEN.fullmatch(out.getvalue())
