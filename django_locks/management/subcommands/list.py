from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_locks.exceptions import StoreUnavailable
from django_locks.management.output import HEADER, lease_object, lease_row
from django_locks.management.subcommands.base import CODES, Subcommand
from django_locks.service import LocksService


class List(Subcommand):
    name = "list"
    help = "List the locks that are held."
    epilog = f"""{CODES}. With --all, what the other
stores answer is printed although one is unreachable.

With --json, an array of objects: name, store, holder, fence, acquired_at and expires_at (ISO 8601, UTC, by the
store's clock), remaining (seconds), state ("held"; "cooling": kept after its run by at_least; "paused": the holder
is the note).

Example: manage.py locks list --prefix cron: --json"""
    over_all = True

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        parser.add_argument("--prefix", default="", help="only names that begin with it")

    def handle(self, services: list[LocksService], *, prefix: str, everywhere: bool, **options: Any) -> None:
        objects, rows, fault = [], [], None
        for service in services:
            try:
                leases = list(service.leases(prefix))
            except StoreUnavailable as error:
                fault = fault or error
                continue
            objects += [lease_object(lease, service.alias) for lease in leases]
            rows += [[service.alias, *lease_row(lease)] for lease in leases]
        if objects or fault is None:
            self.out.json(objects)
            self._print(rows, services, prefix, everywhere)
        if fault is not None:
            raise fault

    def _print(self, rows: list[list[str]], services: list[LocksService], prefix: str, everywhere: bool) -> None:
        if rows:
            header = ["STORE", *HEADER]
            self.out.table([row if everywhere else row[1:] for row in [header, *rows]])
            return
        which = f" whose name begins with {prefix!r}" if prefix else ""
        where = "any store" if everywhere else f"store {services[0].alias!r}"
        self.out.say(f"No lock is held{which} ({where}).")
