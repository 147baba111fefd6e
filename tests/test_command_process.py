"""``manage.py locks`` as a process: how it ends, seen from a shell."""

from __future__ import annotations

import sys

import pytest

from django_locks.management.subcommands import SUBCOMMANDS
from tests.cli import MANAGE, end, manage


class TestProcess:
    """How the command ends, seen from a shell."""

    def test_whole_round_on_one_lock(self, sqlite_env):
        inner = f"{sys.executable} {MANAGE} locks"
        script = (
            f"{inner} show a:b; echo $?; {inner} run a:b -- true; echo $?; {inner} run a:b -E 0 -- true; echo $?;"
            f"{inner} release a:b --force; echo $?; {inner} release a:b --force --yes; echo $?; exit 3"
        )
        ended = manage(sqlite_env, "locks", "run", "a:b", "--ttl", "10m", "--", "sh", "-c", script)
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
            (["run", "x", "--limit", "0", "--", "true"], 2),
            (["list", "--all", "--using", "default"], 2),
            (["pause", "x"], 2),
            (["extend", "x"], 2),
            (["prune"], 2),
            (["wait", "x", "--using", "nope"], 78),
            (["list", "--using", "nope"], 78),
            (["run", "x", "--using", "nope", "--", "true"], 78),
            (["show", "x", "--settings", "testproject.settings", "--no-color", "-v", "0"], 1),
        ],
    )
    def test_wrong_use_ends_in_its_code_without_a_traceback(self, two_stores, args, code):
        ended = end(*args)
        assert ended.code == code
        assert "Traceback" not in ended.err

    def test_wrong_setting_ends_with_78(self, sqlite_env, tmp_path):
        (tmp_path / "bad_settings.py").write_text(
            "from testproject.settings import *\nLOCKS = {'default': {'TTL': -1}}\n"
        )
        bad = {**sqlite_env, "DJANGO_SETTINGS_MODULE": "bad_settings", "PYTHONPATH": str(tmp_path)}
        ended = manage(bad, "locks", "list")
        assert ended.returncode == 78
        assert "TTL" in ended.stderr
        assert "Traceback" not in ended.stderr

    def test_unreachable_store_ends_with_69_and_runs_nothing(self, sqlite_env, tmp_path):
        down = {**sqlite_env, "DATABASE_URL": f"sqlite:///{tmp_path}/no/such/folder/db.sqlite3"}
        for args in (["list"], ["show", "x"], ["run", "x", "--", "touch", str(tmp_path / "ran")]):
            ended = manage(down, "locks", *args)
            assert ended.returncode == 69
            assert "Traceback" not in ended.stderr
        assert not (tmp_path / "ran").exists()

    def test_missing_table_ends_with_69_and_says_migrate(self, sqlite_env, tmp_path):
        empty = {**sqlite_env, "DATABASE_URL": f"sqlite:///{tmp_path / 'empty.sqlite3'}"}
        ended = manage(empty, "locks", "list")
        assert ended.returncode == 69
        assert "migrate" in ended.stderr

    def test_memory_store_warns_that_it_excludes_nobody(self, sqlite_env):
        ended = manage({**sqlite_env, "LOCKS_STORE": "memory"}, "locks", "run", "x", "--", "true")
        assert ended.returncode == 0
        assert "excludes" in ended.stderr

    def test_management_command_in_process_keeps_its_exit_codes(self, sqlite_env):
        ended = manage(sqlite_env, "locks", "run", "x", "--", "nightly", "--seconds", "0.1")
        assert (ended.returncode, "Done." in ended.stdout) == (0, True)
        assert manage(sqlite_env, "locks", "run", "x", "--", "nightly", "--wrong").returncode == 2
        assert manage(sqlite_env, "locks", "run", "x", "--", "createsuperuser", "--noinput").returncode == 1

    def test_names_are_printed_where_the_terminal_knows_ascii_alone(self, sqlite_env):
        narrow = {**sqlite_env, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        inner = f"{sys.executable} {MANAGE} locks list"
        ended = manage(narrow, "locks", "run", "größe 😀", "--", "sh", "-c", inner)
        assert (ended.returncode, "gr\\xf6\\xdfe \\U0001f600" in ended.stdout) == (0, True)

    def test_wrong_use_ends_with_2_for_a_shell_too(self, sqlite_env):
        assert manage(sqlite_env, "locks", "frobnicate").returncode == 2

    @pytest.mark.parametrize("subcommand", SUBCOMMANDS)
    def test_help_has_an_example_and_the_exit_codes(self, two_stores, subcommand):
        ended = end(subcommand, "--help")
        assert ended.code == 0
        assert f"Example: manage.py locks {subcommand}" in ended.out
        assert "Exit codes" in ended.out
        assert max(map(len, ended.out.splitlines())) <= 120
