"""A crew of processes which all do the same job at the same moment, each with the real package and real servers."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Spec(NamedTuple):
    """Where the locks of a test are, as settings that any process can be given."""

    locks: dict[str, Any]  #: the entry "default" of LOCKS
    databases: dict[str, Any] = {}  #: of DATABASES, by alias

    def apply(self) -> None:
        """Use these settings in this process, which must have been made for it."""
        import django
        from django.conf import settings
        from django.core.signals import setting_changed
        from django.db import connections

        if not settings.configured:
            importlib.import_module("tests.servers.databases").use_pymysql()
            databases = {"default": {}, **self.databases}
            settings.configure(INSTALLED_APPS=["django_locks"], USE_TZ=True, DATABASES=databases, LOCKS={})
            django.setup()
        connections.close_all()
        connections.settings = connections.configure_settings({"default": {}, **self.databases})
        for alias in self.databases:
            with contextlib.suppress(AttributeError):
                delattr(connections._connections, alias)
        settings.LOCKS = {"default": self.locks}
        setting_changed.send(type(self), setting="LOCKS", value=settings.LOCKS, enter=True)


class Member(NamedTuple):
    """Handed to a job: which of the crew it is, and how to meet the others."""

    index: int
    size: int
    barrier: Any

    def meet(self) -> None:
        self.barrier.wait(60)


def _serve(index: int, size: int, barrier: Any, tasks: Any, results: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for spec, job, args in iter(tasks.get, None):
        try:
            spec.apply()
            results.put((index, job(Member(index, size, barrier), *args), None))
        except BaseException:
            barrier.abort()
            results.put((index, None, traceback.format_exc()))


class Crew:
    """Processes that are started once and given one job after the other."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.size = size
        self.barrier = context.Barrier(size)
        self.tasks = [context.SimpleQueue() for _ in range(size)]
        self.results = context.SimpleQueue()
        self.members = [
            context.Process(target=_serve, args=(index, size, self.barrier, tasks, self.results), daemon=True)
            for index, tasks in enumerate(self.tasks)
        ]
        for member in self.members:
            member.start()

    def run(self, spec: Spec, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Let all do ``job(member, *args)``, and return their results in the order of the members."""
        self.barrier.reset()
        for tasks in self.tasks:
            tasks.put((spec, job, args))
        answers = sorted((self.results.get() for _ in self.members), key=lambda answer: answer[0])
        # Who only waited in vain for one that failed has little to say.
        errors = sorted((error for _, _, error in answers if error), key=lambda error: "BrokenBarrierError" in error)
        if errors:
            raise AssertionError(f"{len(errors)} of the crew failed; the first said:\n{errors[0]}")
        return [result for _, result, _ in answers]

    def close(self) -> None:
        for tasks in self.tasks:
            tasks.put(None)
        for member in self.members:
            member.join(10)


@contextlib.contextmanager
def process(spec: Spec, job: Callable[..., Any], *args: Any) -> Iterator[multiprocessing.Process]:
    """Run ``job(connection, *args)`` in a process of its own, killed at the end. ``.pipe`` is its other end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_run, args=(spec, job, theirs, *args), daemon=True)
    child.start()
    theirs.close()
    child.pipe = ours  # type: ignore[attr-defined]
    try:
        yield child
    finally:
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        ours.close()


def _run(spec: Spec, job: Callable[..., Any], pipe: Any, *args: Any) -> None:
    spec.apply()
    job(pipe, *args)
