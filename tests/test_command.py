"""``manage.py locks``: in process for what it says, as a process for how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from django_locks import locks
from django_locks.management import arguments
from django_locks.text import printable, table, width

MEMORY = "django_locks.stores.memory.MemoryStore"
MANAGE = Path(__file__).parent.parent / "testproject" / "manage.py"
RTL = "\u202e"


@pytest.fixture(autouse=True)
def _two_stores(settings):
    settings.LOCKS = {
        "default": {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, "HOLDER": "web-1"},
        "other": {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, "HOLDER": "web-2", "KEY_PREFIX": "stg"},
    }


@pytest.fixture
def held():
    guards = []

    def take(name, service=locks, **terms):
        guards.append(service.acquire(name, **terms))
        return guards[-1]

    yield take
    for guard in guards:
        guard.release()


def say(*args):
    """Return what the command prints."""
    out = io.StringIO()
    call_command("locks", *args, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def fail(*args):
    """Return the message and the exit code with which the command ends."""
    with pytest.raises(CommandError) as error:
        say(*args)
    return str(error.value), error.value.returncode


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


class TestRun:
    def run(self, *args):
        """Return the exit code of ``locks run`` in this process."""
        try:
            say("run", *args)
        except SystemExit as end:
            return end.code
        return 0

    def test_child_runs_under_the_lock(self, tmp_path):
        assert self.run("x", "--", "touch", str(tmp_path / "ran")) == 0
        assert (tmp_path / "ran").exists()
        assert locks.get("x") is None

    @pytest.mark.parametrize("code", [0, 1, 3, 75, 255])
    def test_child_decides_the_exit_code(self, code):
        assert self.run("x", "--", "sh", "-c", f"exit {code}") == code

    def test_child_killed_by_a_signal_ends_as_in_a_shell(self):
        assert self.run("x", "--", "sh", "-c", "kill -9 $$") == 128 + signal.SIGKILL

    def test_options_of_the_command_are_left_alone(self, tmp_path):
        script = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(repr(sys.argv[2:]))"
        arguments = ["--ttl", "5", "-n", "--", "-E", "--settings=x", "--json"]
        assert self.run("x", "--ttl", "9", "--", sys.executable, "-c", script, str(tmp_path / "argv"), *arguments) == 0
        assert (tmp_path / "argv").read_text() == repr(arguments)

    @pytest.mark.parametrize("before", [["-E", "9", "x"], ["x", "-E", "9"], ["-n", "x", "--busy-code", "9"]])
    def test_options_may_stand_on_either_side_of_the_name(self, before, held):
        held("x")
        message, code = fail("run", *before, "--", "true")
        assert code == 9
        assert "web-1" in message

    def test_busy_lock_names_its_holder_and_runs_nothing(self, held, tmp_path):
        held("x", ttl=300)
        message, code = fail("run", "x", "--", "touch", str(tmp_path / "ran"))
        assert code == 75
        assert "is held by web-1 for" in message
        assert "free in" in message
        assert not (tmp_path / "ran").exists()

    def test_holder_that_has_gone_in_between_is_unknown(self, held, monkeypatch):
        held("x")
        monkeypatch.setattr("django_locks.stores.memory.MemoryStore.get", lambda store, name: None)
        message, code = fail("run", "x", "--", "true")
        assert (code, "holder unknown" in message) == (75, True)

    def test_waiting_takes_the_lock_when_it_becomes_free(self):
        locks.acquire("x", at_least=0.3).release()
        start = time.monotonic()
        assert self.run("x", "-w", "20s", "--", "true") == 0
        assert time.monotonic() - start < 10

    def test_waiting_ends_after_so_long(self):
        locks.acquire("x", at_least=300).release()
        message, code = fail("run", "x", "-w", "200ms", "--", "true")
        assert code == 75
        assert "is kept for another" in message
        assert "Gave up after 0." in message

    def test_at_least_keeps_the_name(self):
        assert self.run("x", "--at-least", "1m", "--", "true") == 0
        assert 50 < locks.get("x").remaining <= 60

    def test_using_takes_the_lock_of_that_alias(self, held):
        held("x")
        assert self.run("x", "--using", "other", "--", "true") == 0

    def test_lease_broken_meanwhile_ends_with_74(self, monkeypatch):
        message, code = fail("run", "x", "--", *self.breaking(monkeypatch))
        assert code == 74
        assert "'x'" in message

    def test_failure_of_the_command_outranks_the_loss(self, monkeypatch):
        assert self.run("x", "--", *self.breaking(monkeypatch, code=5)) == 5

    def breaking(self, monkeypatch, code=0):
        """Return the command line of a command that breaks the lease under which it runs."""

        class Command(BaseCommand):
            def handle(self, *args, **options):
                locks.force_release("x")
                sys.exit(code)

        monkeypatch.setattr("django_locks.management.run.get_commands", lambda: {"job": Command()})
        return ["job"]

    def test_program_that_is_missing_or_no_program(self, tmp_path):
        (tmp_path / "text").write_text("")
        assert fail("run", "x", "--", "no-such-program-here")[1] == 127
        assert fail("run", "x", "--", str(tmp_path / "text"))[1] == 126
        assert locks.get("x") is None

    def test_management_command_runs_in_process_under_the_lock(self, monkeypatch):
        seen = []

        class Command(BaseCommand):
            def add_arguments(self, parser):
                parser.add_argument("--code", type=int)

            def handle(self, *args, code, **options):
                seen.append((os.getpid(), locks.get("x").name))
                if code == 1:
                    sys.exit("said")
                if code:
                    raise CommandError("no", returncode=code)
                sys.exit()

        monkeypatch.setattr("django_locks.management.run.get_commands", lambda: {"job": Command()})
        assert self.run("x", "--", "job") == 0
        assert self.run("x", "--", "job", "--code", "7") == 7
        assert self.run("x", "--", "job", "--code", "1") == 1
        assert self.run("x", "--", "job", "--wrong") == 2
        assert seen == [(os.getpid(), "x")] * 3
        assert locks.get("x") is None

    def test_error_of_a_management_command_passes_and_frees_the_lock(self, monkeypatch):
        class Command(BaseCommand):
            def handle(self, *args, **options):
                raise ZeroDivisionError

        monkeypatch.setattr("django_locks.management.run.get_commands", lambda: {"job": Command()})
        with pytest.raises(ZeroDivisionError):
            say("run", "x", "--", "job")
        assert locks.get("x") is None

    def test_other_settings_for_a_command_in_process_are_refused(self):
        message, code = fail("run", "x", "--", "check", "--settings=other")
        assert (code, "before the --" in message) == (2, True)

    @pytest.mark.parametrize(
        "args", [["x"], ["x", "--"], ["--", "true"], ["x", "true"], ["x", "-w", "1", "-n", "--", "true"]]
    )
    def test_incomplete_command_line_is_refused(self, args):
        assert "Error" in fail("run", *args)[0]


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


def manage(env, *args):
    return subprocess.run(
        [sys.executable, str(MANAGE), *args],
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """The environment of a project on an SQLite file, migrated."""
    url = f"sqlite:///{tmp_path_factory.mktemp('command') / 'db.sqlite3'}"
    env = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "testproject.settings", "LOCKS_STORE": ""}
    migrated = manage(env, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return env


class TestProcess:
    """How the command ends, seen from a shell."""

    def test_whole_round_on_one_lock(self, env):
        inner = f"{sys.executable} {MANAGE} locks"
        script = (
            f"{inner} show a:b; echo $?; {inner} run a:b -- true; echo $?; {inner} run a:b -E 0 -- true; echo $?;"
            f"{inner} release a:b --force; echo $?; {inner} release a:b --force --yes; echo $?; exit 3"
        )
        ended = manage(env, "locks", "run", "a:b", "--ttl", "10m", "--", "sh", "-c", script)
        codes = [line for line in ended.stdout.splitlines() if line.isdigit()]
        assert codes == ["0", "75", "0", "2", "0"]
        assert ended.returncode == 3
        assert "Traceback" not in ended.stderr

    @pytest.mark.parametrize(
        ("args", "code"),
        [
            ([], 2),
            (["frobnicate"], 2),
            (["show"], 2),
            (["show", " x"], 2),
            (["show", ""], 2),
            (["show", "x" * 201], 2),
            (["run", "x", "--ttl", "soon", "--", "true"], 2),
            (["run", "x", "-w", "-1", "--", "true"], 2),
            (["run", "x"], 2),
            (["list", "--using", "nope"], 78),
            (["run", "x", "--using", "nope", "--", "true"], 78),
            (["show", "x", "--settings", "testproject.settings", "--no-color", "-v", "0"], 1),
        ],
    )
    def test_wrong_use_ends_in_its_code_without_a_traceback(self, env, args, code):
        ended = manage(env, "locks", *args)
        assert ended.returncode == code
        assert "Traceback" not in ended.stderr

    def test_wrong_setting_ends_with_78(self, env, tmp_path):
        (tmp_path / "bad_settings.py").write_text(
            "from testproject.settings import *\nLOCKS = {'default': {'TTL': -1}}\n"
        )
        bad = {**env, "DJANGO_SETTINGS_MODULE": "bad_settings", "PYTHONPATH": str(tmp_path)}
        ended = manage(bad, "locks", "list")
        assert ended.returncode == 78
        assert "TTL" in ended.stderr
        assert "Traceback" not in ended.stderr

    def test_unreachable_store_ends_with_69_and_runs_nothing(self, env, tmp_path):
        down = {**env, "DATABASE_URL": f"sqlite:///{tmp_path}/no/such/folder/db.sqlite3"}
        for args in (["list"], ["show", "x"], ["run", "x", "--", "touch", str(tmp_path / "ran")]):
            ended = manage(down, "locks", *args)
            assert ended.returncode == 69
            assert "Traceback" not in ended.stderr
        assert not (tmp_path / "ran").exists()

    def test_missing_table_ends_with_69_and_says_migrate(self, env, tmp_path):
        empty = {**env, "DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
        ended = manage(empty, "locks", "list")
        assert ended.returncode == 69
        assert "migrate" in ended.stderr

    def test_memory_store_warns_that_it_excludes_nobody(self, env):
        ended = manage({**env, "LOCKS_STORE": "memory"}, "locks", "run", "x", "--", "true")
        assert ended.returncode == 0
        assert "excludes" in ended.stderr

    def test_management_command_in_process_keeps_its_exit_codes(self, env):
        ended = manage(env, "locks", "run", "x", "--", "nightly", "--seconds", "0.1")
        assert (ended.returncode, "Done." in ended.stdout) == (0, True)
        assert manage(env, "locks", "run", "x", "--", "nightly", "--wrong").returncode == 2
        assert manage(env, "locks", "run", "x", "--", "createsuperuser", "--noinput").returncode == 1

    def test_names_are_printed_where_the_terminal_knows_ascii_alone(self, env):
        narrow = {**env, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        inner = f"{sys.executable} {MANAGE} locks list"
        ended = manage(narrow, "locks", "run", "größe 😀", "--", "sh", "-c", inner)
        assert (ended.returncode, "gr\\xf6\\xdfe \\U0001f600" in ended.stdout) == (0, True)

    @pytest.mark.parametrize("subcommand", ["list", "show", "release", "run"])
    def test_help_has_an_example_and_the_exit_codes(self, env, subcommand):
        ended = manage(env, "locks", subcommand, "--help")
        assert ended.returncode == 0
        assert f"Example: manage.py locks {subcommand}" in ended.stdout
        assert "Exit codes" in ended.stdout
