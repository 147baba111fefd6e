from __future__ import annotations

import getpass
import socket
from typing import Any

from django.core.management.base import CommandParser

from django_locks import clock
from django_locks.management.arguments import duration, wait
from django_locks.management.output import about, hint, which
from django_locks.management.subcommands.base import BUSY, CODES, AboutOne
from django_locks.service import LocksService
from django_locks.values import describe_duration, describe_lease


class Pause(AboutOne):
    name = "pause"
    help = "Take a lock out of use for a while, so that nobody gets it."
    epilog = f"""Whoever asks for the lock meanwhile is refused and shown the note. A pause of a paused lock lasts from
now on. A holder is not disturbed: the pause is refused, or waits for it to end.

{CODES}, {BUSY} somebody holds the lock.

Example: manage.py locks pause cron:nightly --for 2h --note "database upgrade, ask Ann" -w 10m"""

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--for", dest="seconds", type=duration, required=True, metavar="TIME", help="for how long: 30m, 2h"
        )
        parser.add_argument("--note", default="", help="why, for those who are refused (default: your name)")
        parser.add_argument(
            "-w", "--wait", dest="patience", type=wait, default=0.0, metavar="SEC", help="wait so long for the holder"
        )

    def handle_one(
        self, service: LocksService, *, name: str, seconds: float, note: str, patience: float, **options: Any
    ) -> None:
        deadline = clock.now() + patience
        while not service.pause(name, seconds, note=note or f"paused by {_user()}"):
            lease = service.wait_until_free(name, wait=max(0.0, deadline - clock.now()))
            if lease is not None or clock.now() >= deadline:
                self.out.refuse(
                    f"{which(service, name)} {describe_lease(lease)}. It was not paused; -w SEC waits for its end.",
                    BUSY,
                    **about(service, name, lease),
                )
        self.out.done(
            f"{which(service, name)} is paused for {describe_duration(seconds)}. To put it back into use before: "
            f"{hint(service, 'resume', name)}",
            **about(service, name, service.get(name)),
        )


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user without a name
        return socket.gethostname()
