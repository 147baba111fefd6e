"""``locks run`` and ``locks watch`` as processes which get signals, and lose their lease."""

from __future__ import annotations

import json
import os
import signal
import time

import psutil
import pytest

from tests.cli import environment, manage, running, wait_until

SHELL = """
echo "started $DJANGO_LOCK_NAME $DJANGO_LOCK_FENCE"
trap 'echo got-TERM; exit 7' TERM
trap 'echo got-HUP; exit 8' HUP
trap 'echo got-INT; exit 9' INT
while true; do sleep 0.05; done
"""
SLOW = "trap 'sleep 4; echo clean; exit 0' TERM; echo started; while true; do sleep 0.05; done"
STUBBORN = "trap '' TERM; echo started; while true; do sleep 0.05; done"

JOB = """
import os, time
from django.core.management.base import BaseCommand
from django_locks import locks

class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("--stubborn", action="store_true")

    def handle(self, *args, stubborn, **options):
        print("started", os.environ["DJANGO_LOCK_NAME"], os.environ["DJANGO_LOCK_FENCE"], flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                if not stubborn:
                    raise
            finally:
                time.sleep(0.5)
                print("finally, held:", locks.get(os.environ["DJANGO_LOCK_NAME"]) is not None, flush=True)
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """The environment of a project with a command of its own, and a TTL of 3 s."""
    folder = tmp_path_factory.mktemp("project")
    commands = folder / "extra" / "management" / "commands"
    commands.mkdir(parents=True)
    for package in (commands, commands.parent, commands.parent.parent):
        (package / "__init__.py").touch()
    (commands / "job.py").write_text(JOB)
    (folder / "extra_settings.py").write_text("from testproject.settings import *\nINSTALLED_APPS += ['extra']\n")
    env = {
        **environment(DATABASE_URL=f"sqlite:///{folder / 'db.sqlite3'}", PYTHONPATH=str(folder), LOCKS_TTL="3"),
        "DJANGO_SETTINGS_MODULE": "extra_settings",
    }
    assert manage(env, "migrate", "-v", "0").returncode == 0
    return env


def lease(env):
    """Return what ``locks show`` says."""
    return json.loads(manage(env, "locks", "show", "x", "--json").stdout)


def break_lease(env):
    assert manage(env, "locks", "release", "x", "--force", "--yes").returncode == 0


def group_of(process):
    """Return the processes below, which must have a group of their own."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    assert {os.getpgid(child.pid) for child in children} == {children[0].pid}
    return children


def all_gone(processes):
    return not any(process.is_running() for process in processes)


class TestChild:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGHUP, 8), (signal.SIGINT, 9)])
    def test_signal_is_handed_on_and_the_childs_end_is_ours(self, env, tmp_path, number, code):
        with running(env, tmp_path, "locks", "run", "x", "--", "sh", "-c", SHELL) as run:
            run.wait_for("started x ")
            processes = group_of(run.process)
            run.signal(number)
            run.wait_for(f"got-{number.name[3:]}")
            assert run.end() == code
            assert all_gone(processes)
        assert lease(env) is None

    def test_lock_is_renewed_while_the_child_cleans_up(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--", "sh", "-c", SLOW) as run:
            run.wait_for("started")
            before = lease(env)
            run.signal(signal.SIGTERM)
            time.sleep(3.1)  # longer than the TTL
            held = lease(env)
            assert "clean" in run.text or held["fence"] == before["fence"]
            assert run.end() == 0
            assert "clean" in run.text

    def test_child_that_dies_by_the_signal_ends_with_143(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--", "sh", "-c", "echo started; exec sleep 60") as run:
            run.wait_for("started")
            run.signal(signal.SIGTERM)
            assert run.end() == 143
        assert lease(env) is None

    def test_child_knows_its_fence(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--", "sh", "-c", SHELL) as run:
            run.wait_for("started x ")
            assert f"started x {lease(env)['fence']}\n" in run.text

    def test_lost_lease_terminates_the_child_and_ends_with_74(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--json", "--", "sh", "-c", SHELL) as run:
            run.wait_for("started")
            processes = group_of(run.process)
            break_lease(env)
            assert run.end() == 74
            assert "got-TERM" in run.text
            assert json.loads(next(line for line in run.text.splitlines() if line.startswith("{")))["exit_code"] == 74
            assert all_gone(processes)

    def test_stubborn_child_is_killed_after_the_grace_time(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--grace", "500ms", "--", "sh", "-c", STUBBORN) as run:
            run.wait_for("started")
            processes = group_of(run.process)
            break_lease(env)
            assert run.end() == 74
            assert all_gone(processes)

    def test_max_hold_ends_a_job_that_hangs(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--max-hold", "1s", "--", "sleep", "60") as run:
            assert run.end() == 74

    def test_what_the_child_leaves_behind_ends_with_it(self, env, tmp_path):
        pid_file = tmp_path / "pid"
        with running(env, tmp_path, "locks", "run", "x", "--", "sh", "-c", f"sleep 60 & echo $! > {pid_file}") as run:
            assert run.end() == 0
        wait_until(lambda: not psutil.pid_exists(int(pid_file.read_text())))

    def test_limit_lets_so_many_in(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "y", "--limit", "2", "--", "sh", "-c", SHELL) as run:
            run.wait_for("started y#")
            other = manage(env, "locks", "run", "y", "--limit", "2", "--", "sh", "-c", "echo $DJANGO_LOCK_NAME")
            assert (other.returncode, other.stdout.strip() in {"y#0", "y#1"}) == (0, True)
            assert other.stdout.strip() not in run.text


class TestManagementCommand:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_signal_lets_it_clean_up_under_the_lock(self, env, tmp_path, number, code):
        with running(env, tmp_path, "locks", "run", "x", "--", "job") as run:
            run.wait_for("started x ")
            run.signal(number)
            assert run.end() == code
            assert "finally, held: True" in run.text
            assert "Traceback" not in run.text
        assert lease(env) is None

    def test_lost_lease_ends_it_with_74(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--", "job") as run:
            run.wait_for("started x ")
            break_lease(env)
            assert run.end() == 74
            assert "finally, held: False" in run.text
            assert "Traceback" not in run.text

    def test_stubborn_one_is_killed_after_the_grace_time(self, env, tmp_path):
        with running(env, tmp_path, "locks", "run", "x", "--grace", "1s", "--", "job", "--stubborn") as run:
            run.wait_for("started x ")
            break_lease(env)
            assert run.end() == 74
            assert "killed" in run.text


def test_sigterm_while_waiting_ends_with_143_and_runs_nothing(env, tmp_path):
    assert manage(env, "locks", "pause", "z", "--for", "1m").returncode == 0
    with running(env, tmp_path, "locks", "run", "z", "-w", "60", "--", "touch", str(tmp_path / "ran")) as run:
        wait_until(lambda: _handles_sigterm(run.process.pid))
        run.signal(signal.SIGTERM)
        assert run.end() == 143
    assert not (tmp_path / "ran").exists()


def _handles_sigterm(pid):
    with open(f"/proc/{pid}/status") as status:
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return caught & 1 << signal.SIGTERM - 1


class TestWatch:
    def test_each_change_is_a_line_and_interrupt_ends_with_0(self, env, tmp_path):
        with running(env, tmp_path, "locks", "watch", "--interval", "50ms", "--all", "--prefix", "w") as watch:
            wait_until(lambda: _handles_sigterm(watch.process.pid))
            assert manage(env, "locks", "run", "w:1", "--", "sleep", "0.5").returncode == 0
            watch.wait_for("freed    w:1")
            watch.signal(signal.SIGINT)
            assert watch.end() == 0
            assert [line.split()[3:5] for line in watch.text.splitlines()] == [["held", "w:1"], ["freed", "w:1"]]

    def test_json_is_an_object_a_line(self, env, tmp_path):
        with running(env, tmp_path, "locks", "watch", "--interval", "50ms", "--json", "--prefix", "w") as watch:
            wait_until(lambda: _handles_sigterm(watch.process.pid))
            assert manage(env, "locks", "run", "w:1", "--", "sleep", "0.5").returncode == 0
            watch.wait_for("freed")
            watch.signal(signal.SIGINT)
            assert watch.end() == 0
            changes = [json.loads(line) for line in watch.text.splitlines()]
        assert [(one["change"], one["lease"]["name"]) for one in changes] == [("held", "w:1"), ("freed", "w:1")]
