"""Renewals as tests see them: threads, losses, stores that hang, and what a forked child says."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

from django_locks import locks
from tests.faults import patched


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> float:
    """Wait until it is true, and return the moment."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return time.monotonic()


def hold_steadily(guard, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        guard.check()
        assert locks.get(guard.name).fence == guard.fence
        time.sleep(0.02)


def renewers():
    names = ("django_locks timer", "django_locks renewer", "django_locks announcer")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


class Losses(list):
    """Collects what `on_lost` is given, with the moment and the thread."""

    def __call__(self, guard):
        self.append((guard, time.monotonic(), threading.current_thread()))


class Hanging:
    """Lets some calls of a verb hang until the test ends or ``go`` is set, and do their work only then."""

    def __init__(self, store, verb="renew", which=lambda number: True, done_before=False):
        self.go = threading.Event()
        self.calls, self.over = itertools.count(1), []
        self.which, self.done_before = which, done_before
        self.patch = patched(store, verb, self.call)

    def call(self, real, *args, **kwargs):
        if not self.which(next(self.calls)):
            return real(*args, **kwargs)
        if self.done_before:
            answer = real(*args, **kwargs)
            self.go.wait(10)
            self.over.append(answer)
            return answer
        self.go.wait(10)
        answer = real(*args, **kwargs)
        self.over.append(answer)
        return answer

    def __enter__(self):
        self.patch.__enter__()
        return self

    def __exit__(self, *args):
        self.patch.__exit__(*args)
        self.go.set()


class Batches(list):
    """Collects the sizes of the batches that a store is asked to renew."""

    def __call__(self, real, leases):
        self.append(len(leases))
        return real(leases)


# Fork


def in_child(work: Callable[[], object], seconds: float = 15.0) -> bool:
    """Return whether the work of a forked child was true; a child that hangs is a failure."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(2)
    deadline = time.monotonic() + seconds
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    return done[1] == 0
