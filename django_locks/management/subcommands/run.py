from __future__ import annotations

import json
import signal
import sys
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_locks import clock
from django_locks.commands import terminated_in_order
from django_locks.conf import entries
from django_locks.exceptions import LockError, LockNotAcquired
from django_locks.guard import LockGuard
from django_locks.management.arguments import duration, exit_code, limit, wait
from django_locks.management.output import result, which
from django_locks.management.run import Run as CommandRun
from django_locks.management.subcommands.base import BUSY, CODES, AboutOne
from django_locks.service import LocksService
from django_locks.values import Name, describe_duration, describe_lease

ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Run(AboutOne):
    name = "run"
    help = "Run a command while holding a lock."
    epilog = f"""Options come before the --, the command after it. A management command runs in this process,
anything else as a child: write its path (/usr/bin/test) where both have the name. The lease is renewed for as
long as the command runs. The command finds the lock in DJANGO_LOCK_NAME and DJANGO_LOCK_FENCE.

SIGTERM, SIGINT and the like are handed on to the child, which has a process group of its own; the lease is renewed
until it has ended. What the child leaves behind in its group is terminated with it. If the lease is lost, the command
is terminated (a management command as by SIGTERM, and its database queries fail), and killed after --grace.

A missing table of leases is made first, by one process of all that start at once: so `migrate` itself can run under
a lock on an empty database (PostgreSQL, MySQL/MariaDB, SQLite).

{CODES},
{BUSY} somebody else holds the lock (or the code of -E), 74 the lease was lost; otherwise the command's own,
128 + N when signal N ended it, 127 not found, 126 not executable. With --json, a result object of one line on stderr.

Example: manage.py locks run cron:nightly -w 10s --ttl 2h -- nightly --verbosity 2
Example: manage.py locks run migrate -w 300 -- migrate"""
    ends_at_dashes = True

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.usage = f"{parser.prog} NAME [options] -- COMMAND …"
        waiting = parser.add_mutually_exclusive_group()
        waiting.add_argument(
            "-n", "--no-wait", dest="wait", action="store_const", const=0, default=0, help="don't wait (the default)"
        )
        waiting.add_argument("-w", "--wait", type=wait, metavar="SEC", help="wait for the lock so long at the most")
        parser.add_argument(
            "-E",
            "--busy-code",
            type=exit_code,
            default=BUSY,
            metavar="CODE",
            help=f"exit code when somebody else holds the lock (default: {BUSY})",
        )
        for option, metavar, text in (
            ("--ttl", "TTL", "free the lock after so long if this process dies"),
            ("--at-least", "TIME", "keep the lock for so long, even if the run is shorter"),
            ("--max-hold", "TIME", "renew the lock no longer than that, and end the command when it is lost"),
        ):
            parser.add_argument(option, type=duration, metavar=metavar, help=text)
        parser.add_argument("--limit", type=limit, metavar="N", help="let so many hold the lock at once")
        parser.add_argument(
            "--grace",
            type=duration,
            default=10.0,
            metavar="TIME",
            help="from the termination to the kill of a command whose lease is lost (default: 10s)",
        )

    def handle_one(
        self,
        service: LocksService,
        *,
        name: str,
        wait: float,
        busy_code: int,
        command: list[str],
        grace: float,
        **options: Any,
    ) -> None:
        terms = {option: options[option] for option in ("ttl", "at_least", "max_hold", "limit")}
        outcome = _Outcome(service.alias, name)
        run = CommandRun(command, grace)
        try:
            with terminated_in_order(*ENDING):
                self._prepare(service)
                with service.acquire(Name(name, name), wait=wait, on_lost=run.stop, **terms) as guard:
                    outcome.begun(guard)
                    code = run(guard)
                    if run.stopped:
                        guard.check()
                    if code:
                        raise _RunFailed(code)
        except _RunFailed as failed:
            outcome.code = failed.code
            sys.exit(failed.code)
        except LockNotAcquired as busy:
            outcome.code = busy_code
            waited = f"Gave up after {describe_duration(busy.waited)}" if busy.waited else "Did not wait; -w SEC does"
            lock = which(service, busy.name)
            outcome.message = f"{lock} {describe_lease(busy.lease)}. {waited}. {command[0]} was not run."
            raise CommandError(outcome.message, returncode=busy_code) from None
        except SystemExit as end:
            outcome.code = end.code if isinstance(end.code, int) else 1
            raise
        except LockError as error:
            outcome.code, outcome.message = error.exit_code, str(error)
            raise
        except CommandError as error:
            outcome.code, outcome.message = error.returncode, str(error)
            raise
        finally:
            if self.out.as_json:
                self.out.command.stderr.write(json.dumps(outcome.as_object()), style_func=str)

    def _prepare(self, service: LocksService) -> None:
        made = entries(service.alias).store.prepare()
        if made:
            self.out.warn(f"The store {service.alias!r} was not ready for use: {made}.")


class _RunFailed(Exception):
    """The command has ended with this exit code: as an exception, so that its lease ends as a failed one."""

    def __init__(self, code: int) -> None:
        self.code = code


class _Outcome:
    """What becomes of a run, for ``--json``."""

    def __init__(self, alias: str, name: str) -> None:
        self._facts: dict[str, Any] = {"name": name, "store": alias, "fence": None, "seconds": None}
        self._start = 0.0
        self.code = 0
        self.message = ""

    def begun(self, guard: LockGuard) -> None:
        self._facts |= {"name": guard.name, "fence": guard.fence}
        self._start = clock.now()

    def as_object(self) -> dict[str, Any]:
        if self._start:
            self._facts["seconds"] = round(clock.now() - self._start, 3)
        return result(self.code == 0, self.code, self.message, self._facts)
