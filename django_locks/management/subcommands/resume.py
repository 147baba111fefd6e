from __future__ import annotations

from typing import Any

from django_locks.management.output import about, which
from django_locks.management.subcommands.base import CODES, FREE, AboutOne
from django_locks.service import LocksService
from django_locks.values import describe_lease


class Resume(AboutOne):
    name = "resume"
    help = "Put a paused lock back into use."
    epilog = f"""{CODES}, {FREE} the lock was not paused.

Example: manage.py locks resume cron:nightly"""

    def handle_one(self, service: LocksService, *, name: str, **options: Any) -> None:
        lock = which(service, name)
        if service.resume(name):
            self.out.done(f"{lock} is back in use.", **about(service, name, service.get(name)))
            return
        lease = service.get(name)
        state = "is free" if lease is None else describe_lease(lease)
        self.out.refuse(f"{lock} is not paused: it {state}.", FREE, **about(service, name, lease))
