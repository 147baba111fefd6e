from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_locks.management.arguments import wait
from django_locks.management.output import about, hint, which
from django_locks.management.subcommands.base import BUSY, CODES, AboutOne
from django_locks.service import LocksService
from django_locks.values import describe_duration, describe_lease


class Wait(AboutOne):
    name = "wait"
    help = "Wait until a lock is free."
    epilog = f"""Somebody else may have it again at once: to do something under the lock, use `locks run -w`.

{CODES}, {BUSY} it is still held.

Example: manage.py locks wait cron:nightly -w 10m"""

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "-w", "--wait", dest="patience", type=wait, metavar="SEC", help="so long at the most (default: for ever)"
        )

    def handle_one(self, service: LocksService, *, name: str, patience: float | None, **options: Any) -> None:
        lease, lock = service.get(name), which(service, name)
        if lease is not None and patience != 0:
            self.out.say(f"{lock} {describe_lease(lease)}. Waiting…")
            lease = service.wait_until_free(name, wait=patience)
        if lease is not None:
            after = f" after {describe_duration(patience)}" if patience else ""
            self.out.refuse(
                f"{lock} {describe_lease(lease)}: not free{after}. To break it: "
                f"{hint(service, 'release', name, '--force')}",
                BUSY,
                **about(service, name, lease),
            )
        self.out.done(f"{lock} is free.", **about(service, name, None))
