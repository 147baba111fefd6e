"""``manage.py locks``: look at locks, free one by force, run a command under one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_locks.conf import entries, locks
from django_locks.exceptions import InvalidLockStore, LockError, LockNotAcquired
from django_locks.management.arguments import FREE, USAGE, add_subcommands
from django_locks.management.run import Run
from django_locks.service import LocksService
from django_locks.text import printable, table
from django_locks.values import LeaseInfo, Name, describe_duration, describe_lease


class Command(BaseCommand):
    """List and show leases, release one by force, run a command under a lock."""

    help = "List and show locks, release one by force, or run a command under one."
    requires_system_checks = []  # a wrong LOCKS ends in its exit code and its message

    def add_arguments(self, parser: CommandParser) -> None:
        add_subcommands(parser)

    def handle(self, *args: Any, subcommand: str, using: str, **options: Any) -> None:
        with _exit_codes():
            self._warn_if_alone(using)
            getattr(self, f"_{subcommand}")(locks.using(using), **options)

    def _list(self, service: LocksService, *, prefix: str, json: bool, **options: Any) -> None:
        leases = service.leases(prefix)
        if json:
            self._write_json([_as_dict(lease, service.alias) for lease in leases])
            return
        rows = [_as_row(lease) for lease in leases]
        if not rows:
            self._say(
                f"No lock is held{f' whose name begins with {prefix!r}' if prefix else ''} (store {service.alias!r})."
            )
            return
        for line in table([["NAME", "STATE", "HOLDER", "AGE", "REMAINING", "FENCE"], *rows]):
            self._say(line)

    def _show(self, service: LocksService, *, name: str, json: bool, **options: Any) -> None:
        lease = service.get(name)
        if json:
            self._write_json(lease and _as_dict(lease, service.alias))
        elif lease is None:
            self._say(f"The lock {name!r} (store {service.alias!r}) is free.")
        else:
            for line in table(_details(lease, service.alias)):
                self._say(line)
        if lease is None:
            sys.exit(FREE)

    def _release(self, service: LocksService, *, name: str, force: bool, yes: bool, **options: Any) -> None:
        lease = service.get(name)
        lock = f"The lock {name!r} (store {service.alias!r})"
        if lease is None:
            _fail(f"{lock} is free: there is nothing to release.", FREE)
        what = f"{lock} {describe_lease(lease)}"
        if not force:
            _fail(f"{what}. To free it although its holder may be at work under it, add --force.", USAGE)
        if not yes and not self._confirmed(what):
            _fail("Nothing was freed.", FREE)
        if not service.force_release(name, fence=lease.fence):
            _fail(f"{lock} has changed hands in the meantime, or was given back: nothing was freed.", FREE)
        self._say(f"Freed the lock {name!r} (store {service.alias!r}), fence {lease.fence}, of {lease.holder}.")

    def _confirmed(self, what: str) -> bool:
        if not sys.stdin.isatty():
            _fail(f"{what}. Nobody is here to confirm that it shall be freed: add --yes.", USAGE)
        self._say(f"{what}. The holder may be at work under it.")
        return input("Free it? [y/N] ").strip().lower() in {"y", "yes"}

    def _run(
        self,
        service: LocksService,
        *,
        name: str,
        wait: float,
        busy_code: int,
        ttl: float | None,
        at_least: float | None,
        command: list[str],
        **options: Any,
    ) -> None:
        run = Run(command)
        try:
            with service.acquire(Name(name, name), wait=wait, ttl=ttl, at_least=at_least):
                code = run()
                if code:
                    raise _RunFailed(code)
        except LockNotAcquired as busy:
            waited = f"Gave up after {describe_duration(busy.waited)}" if busy.waited else "Did not wait; -w SEC does"
            lock = f"The lock {busy.name!r} (store {busy.alias!r})"
            _fail(f"{lock} {describe_lease(busy.lease)}. {waited}. {command[0]} was not run.", busy_code)
        except _RunFailed as failed:
            sys.exit(failed.code)

    def _warn_if_alone(self, alias: str) -> None:
        if entries(alias).store.process_local:
            self.stderr.write(
                f"The store {alias!r} keeps its leases in the memory of each process: this command sees and excludes "
                "no other. Choose the database store or the Redis store in LOCKS."
            )

    def _write_json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, indent=2))

    def _say(self, text: str) -> None:
        self.stdout.write(_encodable(printable(text)))


class _RunFailed(Exception):
    """The command has ended with this exit code: as an exception, so that its lease ends as a failed one."""

    def __init__(self, code: int) -> None:
        self.code = code


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except (LockError, InvalidLockStore) as error:
        raise CommandError(printable(str(error)), returncode=error.exit_code) from error


def _fail(message: str, code: int) -> NoReturn:
    raise CommandError(_encodable(printable(message)), returncode=code)


def _as_dict(lease: LeaseInfo, alias: str) -> dict[str, Any]:
    return {
        "name": lease.name,
        "store": alias,
        "holder": lease.holder,
        "fence": lease.fence,
        "acquired_at": lease.acquired_at.isoformat(timespec="microseconds"),
        "expires_at": lease.expires_at.isoformat(timespec="microseconds"),
        "remaining": round(lease.remaining, 6),
        "state": _state(lease),
    }


def _as_row(lease: LeaseInfo) -> list[str]:
    age, remaining = describe_duration(_age(lease)), describe_duration(lease.remaining)
    return [printable(lease.name), _state(lease), printable(lease.holder), age, remaining, str(lease.fence)]


def _details(lease: LeaseInfo, alias: str) -> list[list[str]]:
    return [
        ["name", printable(lease.name)],
        ["store", alias],
        ["state", _state(lease)],
        ["holder", printable(lease.holder)],
        ["since", f"{lease.acquired_at:%Y-%m-%d %H:%M:%S} UTC, {describe_duration(_age(lease))} ago"],
        [
            "until",
            f"{lease.expires_at:%Y-%m-%d %H:%M:%S} UTC, {describe_duration(lease.remaining)} from now, unless renewed",
        ],
        ["fence", str(lease.fence)],
    ]


def _state(lease: LeaseInfo) -> str:
    return "held" if lease.owner else "cooling"


def _age(lease: LeaseInfo) -> float:
    return (lease.expires_at - lease.acquired_at).total_seconds() - lease.remaining


def _encodable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
