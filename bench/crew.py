"""Processes that compete: forked from a server that has the libraries loaded, so that many start soon."""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any

from . import preload
from .servers import World


def context(world: World) -> Any:
    """Return the way in which processes are started here."""
    os.environ[preload.SETTINGS] = json.dumps(world.settings())
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([preload.__name__])
    return forkserver


class Crew:
    """So many processes, each of which does one job after the other together with the rest."""

    def __init__(self, world: World, size: int) -> None:
        start = context(world)
        self.barrier = start.Barrier(size)
        self._pipes = []
        self._members = []
        for _ in range(size):
            ours, theirs = start.Pipe()
            member = start.Process(target=_serve, args=(theirs, self.barrier), daemon=True)
            member.start()
            theirs.close()
            self._pipes.append(ours)
            self._members.append(member)

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Let all do the job at the same time, and return what they return."""
        for pipe in self._pipes:
            pipe.send((job, args))
        answers = [pipe.recv() for pipe in self._pipes]
        for _, error in answers:
            if error:
                raise RuntimeError(error)
        return [answer for answer, _ in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for member in self._members:
            member.join(5)


def _serve(pipe: Any, barrier: Any) -> None:
    while (task := pipe.recv()) is not None:
        job, args = task
        try:
            pipe.send((job(barrier, *args), None))
        except BaseException:
            barrier.abort()
            pipe.send((None, traceback.format_exc()))
