"""One run: start the workers, disturb them, wait for their end, and judge what they wrote down."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
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
from .recording import record_calls
from .sites import ALIAS, Site
from .team import Team, warm_up
from .worker import Task

NAMES = ("a", "b", "c")
TTL = 0.9  # seconds


class Plan(NamedTuple):
    store: str
    seconds: float
    seed: str
    workers: int = 6
    sabotage: str = ""
    only: frozenset[str] = frozenset()  #: the kinds of faults to choose from; none: all
    until_found: bool = False  #: end at the first violation


class Run(NamedTuple):
    """What came of it."""

    plan: Plan
    histories: Path  #: gone unless a rule was broken
    history: History
    verdict: Verdict

    def as_object(self) -> dict[str, Any]:
        taken = [call.answer for call in self.history.calls if call.verb == "acquire"]
        return {
            "store": self.plan.store,
            "seed": self.plan.seed,
            "seconds": self.plan.seconds,
            "grants": sum(type(answer) is int for answer in taken),
            "refusals": taken.count(None),
            "commits": len(self.history.rows),
            "faults": dict(Counter(fault.kind for fault in self.history.faults)),
            "outside of the promise": dict(Counter(finding.rule for finding in self.verdict.excused)),
            "violations": len(self.verdict.violations),
        }

    def report(self) -> str:
        """Return lines for people, and a last one for programs."""
        found = [f"{finding.rule}: {finding.text}" for finding in self.verdict.violations]
        where = [f"The histories are in {self.histories}"] if found else []
        return "\n".join([*found, *where, json.dumps(self.as_object())])


def run(plan: Plan, site: Site) -> Run:
    """Disturb those who take locks at the site, and judge what they believed."""
    folder = Path(tempfile.mkdtemp(prefix=f"locks-chaos-{plan.store}-"))
    recorder = Recorder(folder / "conductor.jsonl")
    with registered(ALIAS, site.near.databases[ALIAS], migrate=False):
        call_command("migrate", "django_locks", database=ALIAS, verbosity=0)
        counters.create(ALIAS, NAMES)
        _disturb(plan, site, folder, recorder)
        _audit(site.near, recorder)
    recorder.close()
    history = read(folder)
    verdict = check(history, TTL)
    if not verdict.violations:
        shutil.rmtree(folder)
    return Run(plan, folder, history, verdict)


def _disturb(plan: Plan, site: Site, folder: Path, recorder: Recorder) -> None:
    warm_up()
    end = now() + plan.seconds

    def task(label: str, number: int) -> Task:
        spec = site.far if number % 2 else site.near
        seed = f"{plan.seed}/{label}"
        return Task(spec, ALIAS, site.transactions, folder, label, seed, NAMES, TTL, end, plan.sabotage)

    def is_over() -> bool:
        return now() >= end or (plan.until_found and bool(check(read(folder), TTL, ended=False).violations))

    team = Team(plan.workers, task)
    try:
        torment(_chosen(plan, site.faults, team.faults), recorder, random.Random(plan.seed), TTL, is_over)
        if now() >= end:
            team.join(recorder)
    finally:
        team.close()


def _chosen(plan: Plan, *groups: Sequence[Fault]) -> list[list[Fault]]:
    chosen = [[fault for fault in group if not plan.only or fault.kind in plan.only] for group in groups]
    return [group for group in chosen if group]


def _audit(spec: Spec, recorder: Recorder) -> None:
    """A TTL after the end nothing is left, and every name can be had."""
    time.sleep(TTL + SLACK)
    connections[ALIAS].close()  # from before the faults
    location, options = spec.locks["LOCATION"], spec.locks.get("OPTIONS", {})
    store = import_string(spec.locks["BACKEND"])("chaos", location, **options)
    for lease in store.leases():
        recorder.write("trouble", what=f"a lease was left behind: {lease}")
    record_calls(store, recorder)
    for name in NAMES:
        store.acquire(name, "auditor", TTL, "auditor")
        store.release(name, "auditor")
    store.close()
    counters.report(ALIAS, recorder)
