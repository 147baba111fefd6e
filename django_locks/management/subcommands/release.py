from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_locks.management.output import about, hint, which
from django_locks.management.subcommands.base import CODES, FREE, USAGE, AboutOne
from django_locks.service import LocksService
from django_locks.values import describe_lease


class Release(AboutOne):
    name = "release"
    help = "Free a lock that somebody holds."
    epilog = f"""A lease is freed although its holder may be at work under it. The holder is told when it next renews.
Only the lease that was shown is freed, never one that was granted in the meantime.

{CODES}, {FREE} nothing was freed.

Example: manage.py locks release cron:nightly --force"""

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--force", action="store_true", help="do it: without, only say what would be freed")
        parser.add_argument("--yes", action="store_true", help="don't ask for confirmation")

    def handle_one(self, service: LocksService, *, name: str, force: bool = False, yes: bool = False, **_: Any) -> None:
        lease = service.get(name)
        lock, facts = which(service, name), about(service, name, lease)
        if lease is None:
            self.out.refuse(f"{lock} is free: there is nothing to release.", FREE, **facts)
        what = f"{lock} {describe_lease(lease)}"
        if not force:
            self.out.refuse(
                f"{what}. To free it although its holder may be at work under it: "
                f"{hint(service, 'release', name, '--force')}",
                USAGE,
                **facts,
            )
        if not yes:
            if not sys.stdin.isatty():
                self.out.refuse(f"{what}. Nobody is here to confirm that it shall be freed: add --yes.", USAGE, **facts)
            if not self._confirmed(what):
                self.out.refuse("Nothing was freed.", FREE, **facts)
        if not service.force_release(name, fence=lease.fence):
            self.out.refuse(
                f"{lock} has changed hands in the meantime, or was given back: nothing was freed.", FREE, **facts
            )
        self.out.done(
            f"Freed the lock {name!r} (store {service.alias!r}), fence {lease.fence}, of {lease.holder}.", **facts
        )

    def _confirmed(self, what: str) -> bool:
        self.out.warn(f"{what}. The holder may be at work under it.")
        self.out.command.stderr.write("Free it? [y/N] ", ending="")
        self.out.command.stderr.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
