from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_locks.management.arguments import duration
from django_locks.management.output import about, which
from django_locks.management.subcommands.base import CODES, FREE, USAGE, AboutOne
from django_locks.service import LocksService
from django_locks.values import describe_duration, describe_lease


class Extend(AboutOne):
    name = "extend"
    help = "Give the holder of a lock more time."
    epilog = f"""The lease ends so long from now instead, even if its holder cannot renew it. The holder's next renewal
counts its own TTL again. Only the lease that is there is extended, never one that is granted in the meantime.
It is never made shorter.

{CODES}, {FREE} nobody holds the lock.

Example: manage.py locks extend cron:nightly --ttl 10m"""

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--ttl", type=duration, required=True, help="the lease ends so long from now")

    def handle_one(self, service: LocksService, *, name: str, ttl: float, **options: Any) -> None:
        lease = service.get(name)
        lock, facts = which(service, name), about(service, name, lease)
        if lease is None:
            self.out.refuse(f"{lock} is free: there is nothing to extend.", FREE, **facts)
        if lease.state == "cooling":
            self.out.refuse(f"{lock} {describe_lease(lease)}: nobody holds it.", FREE, **facts)
        if ttl < lease.remaining:
            left = describe_duration(lease.remaining)
            self.out.refuse(f"{lock} has {left} left already: --ttl would take time from its holder.", USAGE, **facts)
        if not service.force_extend(name, ttl, fence=lease.fence):
            self.out.refuse(f"{lock} has changed hands in the meantime: nothing was extended.", FREE, **facts)
        self.out.done(
            f"{lock} is {lease.holder}'s for {describe_duration(ttl)} from now, unless it is renewed or released.",
            **about(service, name, service.get(name)),
        )
