from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from testproject.jobs.replicas import Replica

TTL = 5  # seconds
WORK = 6  # longer than the TTL, for a lease is renewed while its holder lives
LONG_WORK = 60  # until it is ended
PATIENCE = 30
TERMINATED = 143  # the exit code of a process that ended by SIGTERM in good order
IN_MEMORY = (
    "LOCKS_STORE=memory keeps leases in the memory of each process, so replicas cannot exclude one another: there is "
    "nothing to show. Use LOCKS_STORE=database or LOCKS_STORE=redis."
)


class Command(BaseCommand):
    help = "Show in a quarter of a minute what a lease does: three replicas of a job, and the death of its holder."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.LOCKS_STORE == "memory":
            raise CommandError(IN_MEMORY)
        self.env = {"LOCKS_TTL": str(TTL), "DATABASE_URL": os.environ.get("DATABASE_URL") or _temporary_database()}
        self.unseen: list[str] = []
        self.printing = threading.Lock()
        self.start = time.monotonic()
        self._prepare()
        self._race()
        self._takeover()
        self._how_to_go_on()
        if self.unseen:
            raise CommandError("Not seen: " + "; ".join(self.unseen) + ".")
        self._print(self.style.SUCCESS("All of it was seen to happen."))

    def _prepare(self) -> None:
        self._title(f"Prepare the database, keep leases in the {settings.LOCKS_STORE} store, TTL {TTL} s")
        code = self._replica("prepare", "prepare").wait(PATIENCE)
        if code != 0:
            raise CommandError(f"The database could not be prepared (exit code {code}).")

    def _race(self) -> None:
        self._title("Three replicas start the nightly job at the same moment")
        replicas = [self._replica(f"replica {n}", "nightly", "--seconds", str(WORK)) for n in (1, 2, 3)]
        codes = [replica.wait(PATIENCE) for replica in replicas]
        ran = [replica for replica in replicas if replica.fence]
        named = [replica for replica in replicas if ran and _names(replica.holder, ran[0])]
        self._expect(codes == [0, 0, 0], "all three exit with 0")
        self._expect(len(ran) == 1, "one replica runs")
        self._expect(len(named) == 2, "the two others skip, and name the one that runs")

    def _takeover(self) -> None:
        self._title("A holder is killed by SIGKILL: nobody releases its lease")
        victim = self._replica("replica 4", "nightly", "--seconds", str(LONG_WORK))
        victim.wait_for("Running with fence", PATIENCE)
        victim.wait_for("s of work done", PATIENCE)
        killed = time.monotonic()
        victim.kill()
        self._expect(victim.wait(PATIENCE) == -9 and "Done." not in victim.text, "the holder dies at its work")
        self._title("Cron goes on starting replicas: they skip until the TTL has run out")
        skipped, heir = self._start_until_one_runs(killed + PATIENCE)
        took = time.monotonic() - killed
        self._expect(any(_names(replica.holder, victim) for replica in skipped), "the dead holder's lease is respected")
        # It was renewed up to a third of the TTL before its end; a replica takes a while to start.
        in_time = heir is not None and TTL / 2 <= took <= TTL + 6
        self._expect(in_time, f"a replica takes over after one TTL (here {took:.1f} s after the kill)")
        self._expect(
            bool(heir and heir.fence and victim.fence and heir.fence > victim.fence),
            "its fence is higher than the dead one's",
        )
        if heir:
            self._show_leases(heir)

    def _start_until_one_runs(self, deadline: float) -> tuple[list[Replica], Replica | None]:
        skipped: list[Replica] = []
        while time.monotonic() < deadline:
            replica = self._replica(f"replica {5 + len(skipped)}", "nightly", "--seconds", str(LONG_WORK))
            if replica.wait_for("Running with fence", PATIENCE):
                return skipped, replica
            skipped.append(replica)
            time.sleep(0.5)
        return skipped, None

    def _show_leases(self, heir: Replica) -> None:
        self._title("What `manage.py locks list` says meanwhile")
        listed = self._list_leases()
        self._expect(str(heir.fence) in listed, "the table shows the new holder and its fence")
        self._title("The new holder is told to stop by SIGTERM, as at every deployment")
        heir.terminate()
        self._expect(heir.wait(PATIENCE) == TERMINATED, f"it ends with exit code {TERMINATED}")
        self._expect("No lock is held" in self._list_leases(), "its lock is free at once")

    def _list_leases(self) -> str:
        listing = self._replica("locks list", "locks", "list")
        return listing.text if listing.wait(PATIENCE) == 0 else ""

    def _how_to_go_on(self) -> None:
        self._title("Look at it in the admin: http://127.0.0.1:8000/admin/ (user demo, password demo)")
        manage = f"uv run {sys.argv[0]}"
        if "DATABASE_URL" not in os.environ:  # otherwise it is in the reader's environment, maybe with a password
            manage = f"DATABASE_URL={self.env['DATABASE_URL']} {manage}"
        self._print(f"  {manage} runserver")
        if settings.LOCKS_STORE != "database":
            self._print("  (it shows leases of the database store; those in Redis: `manage.py locks list`)")
            return
        self._print("Take a lock in another terminal, and break it in the admin:")
        self._print(f"  {manage} locks run demo:report --ttl 10m -- sleep 600")

    def _replica(self, label: str, *command: str) -> Replica:
        return Replica(label, list(command), self.env, self._show)

    def _show(self, label: str, line: str) -> None:
        self._print(f"  {self.style.MIGRATE_LABEL(f'{label:>10}')} | {line}")

    def _title(self, text: str) -> None:
        self._print(f"\n{time.monotonic() - self.start:4.1f} s  {self.style.MIGRATE_HEADING(text)}")

    def _expect(self, seen: bool, what: str) -> None:
        if not seen:
            self.unseen.append(what)
        self._print(self.style.SUCCESS(f"  seen: {what}") if seen else self.style.ERROR(f"  NOT seen: {what}"))

    def _print(self, text: str) -> None:
        with self.printing:
            self.stdout.write(text)
            self.stdout.flush()


def _names(holder: str | None, replica: Replica) -> bool:
    return holder is not None and f":{replica.pid}:" in holder


def _temporary_database() -> str:
    return f"sqlite:///{Path(tempfile.mkdtemp(prefix='django-locks-')) / 'demo.sqlite3'}"
