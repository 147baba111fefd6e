"""One run: start the workers, disturb them, wait for their end, and judge what they wrote down."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from django.core.management import call_command
from django.db import connections
from django.utils.module_loading import import_string

from tests.crew import Spec
from tests.servers.aliases import registered

from . import counters
from .checker import SLACK, Verdict, check
from .history import History, Recorder, now, read
from .nemesis import Fault, torment
from .sites import ALIAS, Open
from .team import Team
from .worker import Task, record_calls

NAMES = ("a", "b", "c")
TTL = 0.9  # seconds


class Run(NamedTuple):
    """What came of it."""

    about: dict[str, Any]
    history: History
    verdict: Verdict

    def as_object(self) -> dict[str, Any]:
        calls = [call for call in self.history.calls if call.verb == "acquire"]
        return {
            **self.about,
            "grants": sum(type(call.answer) is int for call in calls),
            "refusals": sum(call.answer is None for call in calls),
            "commits": len(self.history.rows),
            "faults": dict(Counter(fault.kind for fault in self.history.faults)),
            "outside of the promise": dict(Counter(finding.rule for finding in self.verdict.excused)),
            "violations": len(self.verdict.violations),
        }

    def report(self) -> str:
        """Return lines for people; the last one is for programs."""
        lines = [f"{finding.rule}: {finding.text}" for finding in self.verdict.violations]
        return "\n".join([*lines, json.dumps(self.as_object())])


def run(
    store: str,
    site: Open,
    data: dict[str, Any],
    *,
    seconds: float,
    seed: str,
    workers: int = 6,
    sabotage: str = "",
    only: frozenset[str] = frozenset(),
) -> Run:
    """Disturb workers for so long, and return what came of it. ``only``: the kinds of faults to choose from."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix=f"locks-chaos-{store}-"))
    recorder = Recorder(folder / "conductor.jsonl")
    with (
        site({**data, "CONN_MAX_AGE": 600}, TTL) as place,
        registered(ALIAS, place.near.databases[ALIAS], migrate=False),
    ):
        call_command("migrate", "django_locks", database=ALIAS, verbosity=0)
        counters.create(ALIAS, NAMES)
        end = now() + seconds

        def task(label: str, number: int) -> Task:
            spec = place.far if number % 2 else place.near
            return Task(spec, ALIAS, place.transactions, folder, label, f"{seed}/{label}", NAMES, TTL, end, sabotage)

        team = Team(workers, task)
        try:
            groups = [
                [fault for fault in faults if not only or fault.kind in only] for faults in (place.faults, team.faults)
            ]
            torment([group for group in groups if group], recorder, chance, TTL, end)
            team.join(recorder)
        finally:
            team.close()
        _audit(place.near, recorder)
    recorder.close()
    history = read(folder)
    verdict = check(history, TTL)
    about = {"store": store, "seed": seed, "seconds": seconds, "workers": workers}
    if verdict.violations:
        about["histories"] = str(folder)
    else:
        pass
    return Run(about, history, verdict)


def _chosen(groups: list[list[Fault]], only: frozenset[str]) -> list[list[Fault]]:
    chosen = [[fault for fault in group if not only or fault.kind in only] for group in groups]
    return [group for group in chosen if group]


def _audit(spec: Spec, recorder: Recorder) -> None:
    """A TTL after the end nothing is left, and every name can be had."""
    connections[ALIAS].close()
    time.sleep(TTL + SLACK)
    entry = spec.locks
    store = import_string(entry["BACKEND"])("chaos", entry["LOCATION"], **entry.get("OPTIONS", {}))
    for lease in store.leases():
        recorder.write("trouble", what=f"a lease was left behind: {lease}")
    record_calls(store, recorder)
    for name in NAMES:
        store.acquire(name, "auditor", TTL, "auditor")
        store.release(name, "auditor")
    store.close()
    counters.report(ALIAS, recorder)
