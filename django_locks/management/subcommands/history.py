from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser
from django.db import Error

from django_locks import history
from django_locks.conf import entries
from django_locks.management.arguments import count, lock_name
from django_locks.management.subcommands.base import CODES, Subcommand
from django_locks.service import LocksService
from django_locks.values import describe_duration

if TYPE_CHECKING:
    from django_locks.models import Run

NONE = 1
HEADER = ["STARTED (UTC)", "TOOK", "ENDED", "NAME", "HOLDER", "FENCE"]


class History(Subcommand):
    name = "history"
    help = "Show the last runs under a lock, or under any."
    epilog = f"""Runs are kept for as long as HISTORY in LOCKS says. Moments are by the holder's clock.

{CODES}, {NONE} no run is known.

With --json, an array of objects, the newest first: name, store, holder, fence, started, ended (or null), seconds (or
null), outcome ("running", "released", "failed", "lost", "broken", "expired": never given back) and error (the class of
the exception of a failed one, or empty).

Example: manage.py locks history cron:nightly"""
    over_all = True

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?", type=lock_name, metavar="NAME", help="name of the lock (default: all)")
        parser.add_argument("--last", type=count, default=20, metavar="N", help="so many at the most (default: 20)")

    def handle(self, services: list[LocksService], *, name: str | None, last: int, **options: Any) -> None:
        runs = [run for service in services for run in _runs(service, name, last)]
        runs.sort(key=lambda run: str(run["started"]), reverse=True)
        self.out.json(runs[:last])
        if runs:
            self.out.table([HEADER, *map(_row, runs[:last])])
            return
        kept = [service.alias for service in services if entries(service.alias).history is not None]
        what = "any lock" if name is None else f"the lock {name!r}"
        way_out = "" if kept else ". No history is kept: set HISTORY in LOCKS to a timedelta"
        self.out.end(f"No run under {what} is known (store {', '.join(s.alias for s in services)}){way_out}.", NONE)


def _runs(service: LocksService, name: str | None, last: int) -> list[dict[str, Any]]:
    entry = entries(service.alias)
    try:
        return [_object(run, service, entry.prefix) for run in history.runs(service.alias, name)[:last]]
    except Error as error:
        raise entry.store.unavailable("read the history", name or "", error) from error


def _object(run: Run, service: LocksService, prefix: str) -> dict[str, Any]:
    name = run.name.removeprefix(prefix)
    outcome = run.outcome or history.outcome_of(run, service.get(name))
    return {
        "name": name,
        "store": service.alias,
        "holder": run.holder,
        "fence": run.fence,
        "started": run.started.isoformat(timespec="microseconds"),
        "ended": run.ended and run.ended.isoformat(timespec="microseconds"),
        "seconds": run.duration,
        "outcome": outcome or "running",
        "error": run.error,
    }


def _row(run: dict[str, Any]) -> list[str]:
    started = run["started"][:19].replace("T", " ")
    took = "" if run["seconds"] is None else describe_duration(run["seconds"])
    outcome = f"{run['outcome']}, {run['error']}" if run["error"] else run["outcome"]
    return [started, took, outcome, run["name"], run["holder"], str(run["fence"])]
