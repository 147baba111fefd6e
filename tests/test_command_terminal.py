"""``locks run`` and ``locks watch`` on a terminal, as from a shell's prompt."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import contextmanager, suppress

from tests.cli import MANAGE, manage, wait_until

LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"

COUNT = """
n=0; trap 'n=$((n+1))' INT; echo started
while [ $n = 0 ]; do sleep 0.05; done
sleep 0.5; echo count=$n; exit 5
"""


class Screen:
    """The other side of a terminal."""

    def __init__(self, fd):
        self.fd, self.text = fd, ""
        os.set_blocking(fd, False)

    def wait_for(self, text):
        wait_until(lambda: text in self.read())

    def read(self):
        with suppress(OSError):  # nothing is there just now; or nobody has it open any more
            self.text += os.read(self.fd, 65536).decode()
        return self.text

    def type(self, text):
        os.write(self.fd, text.encode())


@contextmanager
def terminal(env, *command):
    """Run the command in a session of its own, whose terminal it has to itself."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LOGIN, *command],
        env={**env, "TERM": "xterm", "LINES": "20", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, Screen(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def locks(env, *args):
    return terminal(env, sys.executable, str(MANAGE), "locks", *args)


def test_ctrl_c_reaches_the_child_once(sqlite_env):
    with locks(sqlite_env, "run", "x", "--", "sh", "-c", COUNT) as (process, screen):
        screen.wait_for("started")
        screen.type("\x03")
        assert process.wait(30) == 5
        screen.wait_for("count=1")


def test_child_reads_what_is_typed(sqlite_env):
    with locks(sqlite_env, "run", "x", "--", "sh", "-c", "echo name?; read it; echo hello $it") as (process, screen):
        screen.wait_for("name?")
        screen.type("Ann\n")
        screen.wait_for("hello Ann")
        assert process.wait(30) == 0


def test_ctrl_c_reaches_the_child_once_in_a_pipeline_too(sqlite_env, tmp_path):
    counted = tmp_path / "counted"  # the pipe's other end is gone by then
    run = [sys.executable, str(MANAGE), "locks", "run", "x", "--", "sh", "-c", COUNT.replace("$n;", f"$n >{counted};")]
    with terminal(sqlite_env, "sh", "-c", '"$@" | cat', "sh", *run) as (_, screen):
        screen.wait_for("started")
        screen.type("\x03")
        wait_until(counted.exists)
        wait_until(counted.read_text)
    assert counted.read_text() == "count=1\n"


def test_ctrl_z_stops_both_and_the_shell_wakes_both(sqlite_env):
    run = [sys.executable, str(MANAGE), "locks", "run", "x", "--", "sh", "-c", "echo started; read it; echo got $it"]
    script = 'set -m; "$@"; echo back at the prompt; fg >/dev/null; echo ended with $?'
    with terminal(sqlite_env, "bash", "-c", script, "bash", *run) as (_, screen):
        screen.wait_for("started")
        screen.type("\x1a")
        screen.wait_for("back at the prompt")
        screen.type("Ann\n")
        screen.wait_for("got Ann")
        screen.wait_for("ended with 0")


def test_watch_is_a_table_that_ends_with_0_and_gives_the_screen_back(sqlite_env):
    with locks(sqlite_env, "watch", "--interval", "100ms") as (process, screen):
        screen.wait_for("Ctrl-C ends")
        assert manage(sqlite_env, "locks", "run", "w:1", "--", "sleep", "0.5").returncode == 0
        screen.wait_for("w:1   held")
        screen.type("\x03")
        assert process.wait(30) == 0
        screen.wait_for("\x1b[?25h\x1b[?1049l")
        assert "Traceback" not in screen.text
