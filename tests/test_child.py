"""The child process of ``locks run``, run in this process: signals before its start and after its end, stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from django_locks.management import child
from django_locks.management.child import Child, _Terminal
from tests.cli import wait_until

GRACE = 10.0
SLEEP = ["sleep", "60"]
STOPS_ITSELF = ["sh", "-c", "kill -STOP $$; exit 3"]

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")


@pytest.fixture
def before_start(monkeypatch):
    """Let this be done between the call of `Child.run` and the start of its process."""

    def do(step):
        def start(argv, **options):
            step()
            return popen(argv, **options)

        popen = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", start)

    return do


class InThread(threading.Thread):
    """Runs a child in another thread than the main one."""

    def __init__(self, argv):
        super().__init__()
        self.child = Child(argv, GRACE)
        self.code = None
        self.start()
        wait_until(lambda: self.child._process)
        self.process = psutil.Process(self.child._process.pid)

    def run(self):
        self.code = self.child.run()

    def end(self):
        self.join(20)
        return self.code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_that_comes_before_the_start_ends_the_child(number, before_start):
    before = signal.getsignal(number)
    before_start(lambda: signal.raise_signal(number))
    assert Child(SLEEP, GRACE).run() == -number
    assert signal.getsignal(number) is before


def test_signals_are_handled_as_before_although_the_child_cannot_start():
    before = [signal.getsignal(number) for number in child.FORWARDED]
    with pytest.raises(FileNotFoundError):
        Child(["no-such-program-here"], GRACE).run()
    assert [signal.getsignal(number) for number in child.FORWARDED] == before


def test_signal_that_is_ignored_is_not_handed_on(before_start):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before_start(lambda: signal.raise_signal(signal.SIGHUP))
        assert Child(["true"], GRACE).run() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_child_of_another_thread_is_stopped_from_the_main_one():
    running = InThread(SLEEP)
    assert os.getpgid(running.process.pid) == running.process.pid
    running.child.stop()
    assert running.end() == -signal.SIGTERM


def test_child_that_stops_goes_on_when_it_is_told_so():
    running = InThread(STOPS_ITSELF)
    wait_until(lambda: running.process.status() == psutil.STATUS_STOPPED)
    assert running.is_alive()
    running.process.send_signal(signal.SIGCONT)
    assert running.end() == 3


def test_stopped_child_that_has_to_end_is_woken_for_it():
    running = InThread(STOPS_ITSELF)
    wait_until(lambda: running.process.status() == psutil.STATUS_STOPPED)
    running.child.stop()
    assert running.end() == -signal.SIGTERM


def test_child_that_has_ended_by_itself_is_not_terminated_for_a_loss():
    ended = Child(["sh", "-c", "exit 4"], GRACE)

    def watch(process):
        process.wait()
        ended.stop()
        ended._events.put("ended")

    ended._watch = watch
    assert ended.run() == 4
    assert ended._signal(signal.SIGTERM) is False


def test_without_process_groups_the_child_alone_is_terminated(monkeypatch):
    monkeypatch.setattr(child, "HAS_GROUPS", False)
    running = InThread([sys.executable, "-c", "import os, time; print(os.getpgrp()); time.sleep(60)"])
    assert os.getpgid(running.process.pid) == os.getpgrp()
    running.child.stop()
    assert running.end() == -signal.SIGTERM


def test_without_waitid_the_end_is_noticed(monkeypatch):
    monkeypatch.delattr(os, "waitid")
    assert Child(["sh", "-c", "exit 5"], GRACE).run() == 5


def test_what_outlives_the_grace_time_is_killed_with_its_group(tmp_path):
    pid_file = tmp_path / "pid"
    stubborn = f"(trap '' TERM; echo > {pid_file}.ready; exec sleep 60) & echo $! > {pid_file}"
    start = time.monotonic()
    assert Child(["sh", "-c", f"{stubborn}; while ! [ -f {pid_file}.ready ]; do sleep 0.01; done"], 0.3).run() == 0
    assert 0.3 <= time.monotonic() - start < 10
    left = int(pid_file.read_text())
    wait_until(lambda: not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE)


class TestTerminal:
    """With a terminal that is made up: who has it, and who was sent what."""

    @pytest.fixture
    def terminal(self, monkeypatch):
        terminal = _Terminal(group=77)
        terminal._own, terminal._fd = 11, 5
        self.foreground, self.sent = 77, []
        monkeypatch.setattr(os, "tcgetpgrp", lambda fd: self.foreground)
        monkeypatch.setattr(os, "tcsetpgrp", self.hand)
        monkeypatch.setattr(os, "killpg", lambda group, number: self.sent.append((group, number, self.foreground)))
        return terminal

    def hand(self, fd, group):
        assert signal.getsignal(signal.SIGTTOU) is signal.SIG_IGN
        self.foreground = group

    def test_keyboards_stop_is_for_both_and_the_shell_wakes_both(self, terminal):
        before = signal.getsignal(signal.SIGTTOU)
        terminal.stop_with_child()
        assert self.sent[0] == (11, signal.SIGTSTP, 11)
        assert self.sent[-1] == (77, signal.SIGCONT, 77)
        assert signal.getsignal(signal.SIGTTOU) is before

    def test_stop_that_was_not_the_keyboards_leaves_this_process_running(self, terminal):
        self.foreground = 33
        terminal.stop_with_child()
        assert (self.sent, self.foreground) == ([], 33)

    def test_process_woken_in_the_background_wakes_the_child_there(self, terminal, monkeypatch):
        def shell(group, number):
            self.sent.append((group, number))
            if number == signal.SIGTSTP:
                self.foreground = 33  # the shell's

        monkeypatch.setattr(os, "killpg", shell)
        terminal.stop_with_child()
        assert self.sent == [(11, signal.SIGTSTP), (77, signal.SIGCONT)]
        assert self.foreground == 33
