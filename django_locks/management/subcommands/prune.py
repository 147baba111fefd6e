from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_locks import fencing
from django_locks.conf import entries
from django_locks.management.arguments import duration
from django_locks.management.subcommands.base import CODES, Subcommand
from django_locks.service import LocksService
from django_locks.values import describe_duration


class Prune(Subcommand):
    name = "prune"
    help = "Forget names that have been free for long."
    epilog = f"""\
Every name leaves a row in the database when it is given back: who had it last, and its fence, which goes on
rising after the name was forgotten. Names that are held, kept or paused are never forgotten. Rows go in batches;
it may run at any time. The store is pruned as a whole, for all KEY_PREFIXes that share it. Redis forgets by itself.
So are the fences of guard.atomic(), which it keeps in the database of the leases, or else in 'default'.

{CODES}.

Example: manage.py locks prune --older-than 30d --dry-run"""
    over_all = True

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", type=duration, required=True, metavar="TIME", help="free for longer than that: 30d"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count them")

    def handle(
        self, services: list[LocksService], *, older_than: float, dry_run: bool, everywhere: bool, **options: Any
    ) -> None:
        results = [self._prune(service, older_than, dry_run) for service in services]
        self.out.json(results if everywhere else results[0])

    def _prune(self, service: LocksService, older_than: float, dry_run: bool) -> dict[str, Any]:
        store = entries(service.alias).store
        count = store.count_free(older_than) if dry_run else store.prune(older_than)
        fences = fencing.forget(store, older_than, dry_run)
        what = f"{count} name{'' if count == 1 else 's'}, free for more than {describe_duration(older_than)}"
        if fences:
            what += f", and {fences} fence{'' if fences == 1 else 's'} of guard.atomic()"
        verb = "Would forget" if dry_run else "Forgot"
        message = f"{verb} {what} (store {service.alias!r})."
        self.out.say(message)
        return {
            "done": not dry_run,
            "exit_code": 0,
            "message": message,
            "store": service.alias,
            "names": count,
            "fences": fences,
            "older_than": older_than,
            "dry_run": dry_run,
        }
