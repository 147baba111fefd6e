from __future__ import annotations

import os
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_locks import locks, with_lock


@with_lock("cron:nightly")
class Command(BaseCommand):
    help = "A job of some seconds, of which one replica is to run at a time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seconds", type=float, default=5.0, help="how long it takes (default: 5)")

    def handle(self, *args: Any, seconds: float, **options: Any) -> None:
        start = time.monotonic()
        lease = locks.get("cron:nightly")
        self._report(f"Running with fence {lease.fence if lease else '(lost)'}, process {os.getpid()}.")
        while (left := start + seconds - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
            self._report(f"{min(time.monotonic() - start, seconds):.0f} of {seconds:.0f} s of work done.")
        self._report("Done.")

    def _report(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()
