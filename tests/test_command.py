"""``manage.py locks list``, ``show`` and ``release``, and its arguments."""

from __future__ import annotations

import io
import json
import socket
from argparse import ArgumentTypeError
from datetime import UTC, datetime

import pytest
from django.core.management import call_command

from django_locks import LocksService, locks
from django_locks.management import arguments
from django_locks.management.commands.locks import Command
from django_locks.management.output import Output
from django_locks.text import cut, printable, table, width
from tests.cli import end, fail, say

RTL = "\u202e"

pytestmark = pytest.mark.usefixtures("two_stores")


class TestList:
    def test_columns_are_aligned_whatever_the_names(self, held):
        names = ["a", "größe", "東京", "😀 long name", f"import:{RTL}x", "e\u0301"]
        for name in names:
            held(name)
        header, *lines = say("list").splitlines()
        at = header.index("STATE")
        assert len(lines) == len(names)
        for line in lines:
            before = line[: line.index("held")]
            assert width(before) == at

    def test_rows_tell_state_holder_and_fence(self, held):
        guard = held("busy", ttl=300)
        locks.acquire("kept", at_least=60).release()
        first, second = say("list").splitlines()[1:]
        assert first.split()[:3] == ["busy", "held", "web-1"]
        assert first.split()[-1] == str(guard.fence)
        assert second.split()[:2] == ["kept", "cooling"]

    def test_prefix_and_alias_select(self, held):
        held("a:1")
        held("b:1")
        held("c:1", locks.using("other"))
        assert [line.split()[0] for line in say("list", "--prefix", "a:").splitlines()[1:]] == ["a:1"]
        assert [line.split()[0] for line in say("list", "--using", "other").splitlines()[1:]] == ["c:1"]

    def test_nothing_held_says_so(self):
        assert "No lock is held (store 'default')" in say("list")
        assert json.loads(say("list", "--json")) == []

    def test_json_has_the_documented_fields_and_no_secret(self, held):
        guard = held('a "quoted" <script>', ttl=60)
        locks.acquire("kept", at_least=60).release()
        text = say("list", "--json")
        first, second = json.loads(text)
        assert set(first) == {"name", "store", "holder", "fence", "acquired_at", "expires_at", "remaining", "state"}
        assert (first["name"], first["store"], first["holder"]) == ('a "quoted" <script>', "default", "web-1")
        assert (first["fence"], first["state"], second["state"]) == (guard.fence, "held", "cooling")
        assert 59 < first["remaining"] <= 60
        assert datetime.fromisoformat(first["acquired_at"]).tzinfo == UTC
        assert guard.owner not in text


class TestShow:
    def test_held_lock_is_described_without_its_secret(self, held):
        guard = held("busy", ttl=600)
        text = say("show", "busy")
        for part in ("busy", "default", "held", "web-1", str(guard.fence), "unless renewed"):
            assert part in text
        assert guard.owner not in text
        assert json.loads(say("show", "busy", "--json"))["fence"] == guard.fence

    def test_free_lock_is_said_to_be_free_and_exits_1(self):
        out = io.StringIO()
        with pytest.raises(SystemExit) as end:
            call_command("locks", "show", "nobody", stdout=out, stderr=io.StringIO())
        assert end.value.code == 1
        assert out.getvalue() == "The lock 'nobody' (store 'default') is free.\n"

    def test_text_that_steers_the_terminal_is_made_visible(self, held, settings):
        settings.LOCKS["default"]["HOLDER"] = f"web{RTL}1"
        held(f"a{RTL}b")
        text = say("show", f"a{RTL}b")
        assert RTL not in text
        assert "a\\u202eb" in text
        assert "web\\u202e1" in text


class TestRelease:
    def test_without_force_it_says_who_holds_it_and_changes_nothing(self, held):
        guard = held("busy")
        message, code = fail("release", "busy")
        assert code == 2
        assert "is held by web-1 for" in message
        assert "--force" in message
        guard.check()
        assert locks.get("busy").fence == guard.fence

    def test_without_a_terminal_it_wants_yes(self, held, monkeypatch):
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        held("busy")
        message, code = fail("release", "busy", "--force")
        assert (code, "--yes" in message) == (2, True)
        assert locks.get("busy")

    @pytest.mark.parametrize(("answer", "freed"), [("y", True), ("YES", True), ("", False), ("n", False)])
    def test_on_a_terminal_it_asks(self, answer, freed, held, monkeypatch):
        held("busy")
        terminal = io.StringIO(answer + "\n")
        terminal.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", terminal)
        if freed:
            assert "Freed the lock 'busy'" in say("release", "busy", "--force")
        else:
            assert fail("release", "busy", "--force") == ("Nothing was freed.", 1)
        assert (locks.get("busy") is None) is freed

    def test_forced_release_frees_the_lock_and_its_holder_finds_out(self, held):
        guard = held("busy")
        text = say("release", "busy", "--force", "--yes")
        assert str(guard.fence) in text
        assert "web-1" in text
        assert guard.owner not in text
        assert locks.get("busy") is None
        assert guard.release() is False

    def test_lease_that_changed_hands_meanwhile_is_spared(self, held, monkeypatch):
        first = held("busy")
        lease = locks.get("busy")
        first.release()
        second = held("busy")
        monkeypatch.setattr("django_locks.service.LocksService.get", lambda service, name: lease)
        message, code = fail("release", "busy", "--force", "--yes")
        assert (code, "changed hands" in message) == (1, True)
        monkeypatch.undo()
        second.check()
        assert second.release() is True

    def test_free_lock_has_nothing_to_release(self):
        assert fail("release", "nobody", "--force", "--yes")[1] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("0.5", 0.5), ("500ms", 0.5), ("30s", 30), ("10m", 600), ("1.5h", 5400), ("7d", 604800)],
)
def test_duration_is_read(text, expected):
    assert arguments.duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1 s", "1h30m", "5y", "1e3", "nan", "inf", "+1", "١", "0x10", "1_000", "4000d", "9" * 400]
)
def test_bad_duration_is_refused_by_name(text):
    with pytest.raises(ArgumentTypeError):
        arguments.duration(text)


def test_wait_may_be_nothing_but_a_ttl_may_not():
    assert arguments.wait("0") == 0
    with pytest.raises(ArgumentTypeError, match="more than 0"):
        arguments.duration("0")


@pytest.mark.parametrize("text", ["-1", "256", "x", "", "²"])
def test_bad_exit_code_is_refused(text):
    with pytest.raises(ArgumentTypeError):
        arguments.exit_code(text)


def test_printable_keeps_writing_and_shows_controls():
    assert printable("größe 東京 👩‍👩‍👧 שלום") == "größe 東京 👩‍👩‍👧 שלום"
    assert printable("a\u2066b\x1b[31m\u2028\ud800") == "a\\u2066b\\x1b[31m\\u2028\\ud800"


def test_table_aligns_by_columns_of_the_terminal():
    assert table([["東", "x"], ["ab", "y"], ["e\u0301", "z"]]) == ["東  x", "ab  y", "e\u0301   z"]


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("東京都", 6, "東京都"),
        ("東京都", 5, "東京…"),
        ("東京都", 4, "東…"),
        ("ab", 1, "…"),
    ],
)
def test_text_is_cut_to_what_the_terminal_can_show(text, columns, shown):
    assert cut(text, columns) == shown
    assert width(shown) <= columns


def test_lock_that_is_only_kept_is_not_extended():
    locks.acquire("kept", at_least=60).release()
    text, code = fail("extend", "kept", "--ttl", "2h")
    assert code == 1
    assert "nobody holds it" in text


def test_lock_that_has_changed_hands_is_not_extended(held, monkeypatch):
    held("x")
    monkeypatch.setattr(LocksService, "force_extend", lambda *args, **kwargs: False)
    text, code = fail("extend", "x", "--ttl", "2h")
    assert code == 1
    assert "nothing was extended" in text


def test_user_without_a_name_pauses_in_the_name_of_the_host(monkeypatch):
    def nameless():
        raise KeyError("uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    say("pause", "x", "--for", "1h")
    assert locks.get("x").holder == f"paused by {socket.gethostname()}"


@pytest.mark.parametrize("count", ["0", "-1", "1e3", "x", "9" * 7])
def test_number_of_lines_that_is_none_is_wrong_usage(count):
    assert "no number of lines" in end("history", f"--last={count}").err


def test_interrupt_ends_with_130_as_a_shell_has_it(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocksService, "leases", interrupt)
    assert end("list")[:2] == (130, "")


@pytest.mark.parametrize(("as_json", "said"), [(False, "all *well*.\n"), (True, "")])
def test_styled_line_is_for_people_alone(as_json, said):
    out = io.StringIO()
    Output(Command(stdout=out), as_json).say_styled("well", "*{}*".format, before="all ", after=".")
    assert out.getvalue() == said
