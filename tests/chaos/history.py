"""What happened, as those who took part wrote it down: a file for each process, one JSON object a line.

A process that is killed leaves all that it has written, and a call without an answer. All moments are of one clock,
which is common to the processes of a machine, and goes on while one of them is stopped.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    return time.clock_gettime(_CLOCK)


class Recorder:
    """Appends to the history of this process; from any thread, and from a signal handler."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._calls = itertools.count()

    def write(self, kind: str, *, at: float | None = None, **facts: Any) -> None:
        line = json.dumps({"kind": kind, "at": now() if at is None else at, **facts})
        os.write(self._file, line.encode() + b"\n")  # at once: there may be no later

    def call(self, **facts: Any) -> int:
        number = next(self._calls)
        self.write("call", call=number, **facts)
        return number

    def answer(self, call: int, answer: object) -> None:
        self.write("answer", call=call, answer=answer)

    def close(self) -> None:
        os.close(self._file)


FAILED = "failed"  #: in place of an answer: nobody knows whether the call was executed

KILL = "kill workers"
FORCE = "free by force"


@dataclass
class Call:
    """A verb of the store: it happened at some moment from ``begin`` to ``end``, or not at all."""

    verb: str
    name: str
    owner: str
    begin: float
    end: float = math.inf
    answer: Any = FAILED
    ttl: float = 0.0  #: of a release: for how long the name stays taken
    process: str = ""


@dataclass
class Belief:
    """A guard that said it was held: at the grant, and at each look until the last."""

    name: str
    owner: str
    fence: int
    since: float
    until: float
    lost: float = math.inf


@dataclass
class Fault:
    kind: str
    begin: float
    end: float
    workers: list[str] = field(default_factory=list)  #: which it has hit, if any


@dataclass
class Write:
    """An increment of a counter, in a fenced transaction."""

    op: str
    name: str
    fence: int
    outcome: str = "unknown"  #: "ok"; "failed": nothing may be committed; "unknown"


@dataclass
class Row:
    """What the journal says of a committed increment."""

    op: str
    name: str
    value: int
    fence: int


@dataclass
class History:
    calls: list[Call] = field(default_factory=list)
    beliefs: list[Belief] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)  #: what no worker should have met, or left behind

    @property
    def names(self) -> list[str]:
        return sorted({call.name for call in self.calls} | {belief.name for belief in self.beliefs})

    def of(self, name: str, *verbs: str) -> list[Call]:
        return [call for call in self.calls if call.name == name and call.verb in verbs]


def read(folder: Path) -> History:
    history = History()
    for path in sorted(folder.glob("*.jsonl")):
        _Reader(history, path.stem).read(path.read_text().splitlines())
    _settle(history)
    return history


class _Reader:
    def __init__(self, history: History, process: str) -> None:
        self._history = history
        self._process = process
        self._calls: dict[int, Call] = {}
        self._beliefs: dict[str, Belief] = {}
        self._writes: dict[str, Write] = {}

    def read(self, lines: Sequence[str]) -> None:
        for line in lines:
            event = json.loads(line)
            getattr(self, f"_{event.pop('kind')}")(**event)

    def _call(self, at: float, call: int, verb: str, name: str, owner: str, ttl: float = 0.0) -> None:
        self._calls[call] = Call(verb, name, owner, at, ttl=ttl, process=self._process)
        self._history.calls.append(self._calls[call])

    def _answer(self, at: float, call: int, answer: Any) -> None:
        self._calls[call].end, self._calls[call].answer = at, answer

    def _granted(self, at: float, name: str, owner: str, fence: int) -> None:
        self._beliefs[owner] = Belief(name, owner, fence, at, at)
        self._history.beliefs.append(self._beliefs[owner])

    def _held(self, at: float, owner: str) -> None:
        self._beliefs[owner].until = max(at, self._beliefs[owner].until)

    def _lost(self, at: float, owner: str) -> None:
        self._beliefs[owner].lost = min(at, self._beliefs[owner].lost)

    def _write(self, at: float, op: str, name: str, fence: int) -> None:
        self._writes[op] = Write(op, name, fence)
        self._history.writes.append(self._writes[op])

    def _wrote(self, at: float, op: str, outcome: str) -> None:
        self._writes[op].outcome = outcome

    def _fault(self, at: float, fault: str, begin: float, workers: list[str]) -> None:
        self._history.faults.append(Fault(fault, begin, at, workers))

    def _row(self, at: float, **facts: Any) -> None:
        self._history.rows.append(Row(**facts))

    def _counter(self, at: float, name: str, value: int) -> None:
        self._history.counters[name] = value

    def _trouble(self, at: float, what: str) -> None:
        self._history.troubles.append(f"{self._process}: {what}")


def _settle(history: History) -> None:
    """Find out until when calls without an answer may have happened."""
    killed = {worker: fault.begin for fault in history.faults if fault.kind == KILL for worker in fault.workers}
    for call in history.calls:
        if call.answer == FAILED:
            until = min(call.end, max(call.begin, killed.get(call.process, math.inf)))
            # A server that hangs, and a network that holds a request back, may come back to it.
            delays = [fault.end for fault in history.faults if not fault.workers and fault.begin <= until]
            call.end = max([until, *(end for end in delays if call.begin <= end)])
