"""``manage.py locks run``, in this process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from django.core.management.base import BaseCommand, CommandError

from django_locks import locks
from django_locks.management.run import _InProcess
from tests.cli import fail, say

pytestmark = pytest.mark.usefixtures("two_stores")


@contextmanager
def stubborn(number):
    """Handle the signal by going on."""
    before = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(number, before)


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

    def test_interrupted_management_command_ends_with_130(self, monkeypatch):
        class Command(BaseCommand):
            def handle(self, *args, **options):
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr("django_locks.management.run.get_commands", lambda: {"job": Command()})
        assert self.run("x", "--", "job") == 128 + signal.SIGINT
        assert locks.get("x") is None

    def test_management_command_that_outlives_the_grace_time_is_killed(self, monkeypatch, capfd):
        class Command(BaseCommand):
            def handle(self, *args, **options):
                locks.force_release("x")
                assert killed.wait(10)

        killed, codes = threading.Event(), []
        monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), killed.set()))
        monkeypatch.setattr("django_locks.management.run.get_commands", lambda: {"job": Command()})
        with stubborn(signal.SIGTERM):
            assert fail("run", "x", "--ttl", "300ms", "--grace", "50ms", "--", "job")[1] == 74
        assert codes == [74]
        assert "job did not end after its lease was lost: killed." in capfd.readouterr().err

    def test_management_command_that_has_ended_is_not_killed(self, monkeypatch):
        codes = []
        monkeypatch.setattr(os, "_exit", codes.append)
        run = _InProcess(BaseCommand(), ["job"], 0)
        with stubborn(signal.SIGTERM), run._stoppable():
            assert run._running
        run.stop()
        run._end_by_force()
        assert codes == []

    def test_lock_of_the_surroundings_is_named_again_after_the_run(self, monkeypatch):
        monkeypatch.setenv("DJANGO_LOCK_NAME", "outer")
        monkeypatch.delenv("DJANGO_LOCK_FENCE", raising=False)
        assert self.run("x", "--", "sh", "-c", 'test "$DJANGO_LOCK_NAME" = x -a -n "$DJANGO_LOCK_FENCE"') == 0
        assert (os.environ["DJANGO_LOCK_NAME"], "DJANGO_LOCK_FENCE" in os.environ) == ("outer", False)

    def test_other_settings_for_a_command_in_process_are_refused(self):
        message, code = fail("run", "x", "--", "check", "--settings=other")
        assert (code, "before the --" in message) == (2, True)

    @pytest.mark.parametrize(
        "args", [["x"], ["x", "--"], ["--", "true"], ["x", "true"], ["x", "-w", "1", "-n", "--", "true"]]
    )
    def test_incomplete_command_line_is_refused(self, args):
        assert "Error" in fail("run", *args)[0]
