from __future__ import annotations

from typing import Any

from django_locks.management.output import hint, lease_details, lease_object, which
from django_locks.management.subcommands.base import CODES, FREE, AboutOne
from django_locks.service import LocksService

NEXT = {
    "held": ("to break it", "release", "--force"),
    "cooling": ("to free it", "release", "--force"),
    "paused": ("to put it back", "resume"),
}


class Show(AboutOne):
    name = "show"
    help = "Show who holds a lock."
    epilog = f"""{CODES}, {FREE} the lock is free.

With --json, one object as `locks list` has them, or null for a free lock.

Example: manage.py locks show cron:nightly"""

    def handle_one(self, service: LocksService, *, name: str, **options: Any) -> None:
        lease = service.get(name)
        self.out.json(lease and lease_object(lease, service.alias))
        if lease is None:
            self.out.end(f"{which(service, name)} is free.", FREE)
        what, verb, *flags = NEXT[lease.state]
        self.out.table([*lease_details(lease, service.alias), [what, hint(service, verb, name, *flags)]])
