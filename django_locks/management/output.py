"""What ``manage.py locks`` prints: sentences and tables for people; JSON for programs, as docs/json.md has it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from django_locks.service import LocksService
from django_locks.text import printable, table
from django_locks.values import LeaseInfo, describe_duration


class Output:
    """Where a subcommand writes to. What is said to people is left out with ``--json``."""

    def __init__(self, command: BaseCommand, as_json: bool) -> None:
        self.command = command
        self.as_json = as_json

    def say(self, text: str) -> None:
        """Print a line for people."""
        if not self.as_json:
            self.command.stdout.write(encodable(printable(text)))

    def say_styled(self, word: str, paint: Callable[[str], str], before: str = "", after: str = "") -> None:
        """Print a line for people, with one coloured word where the terminal has colours."""
        if not self.as_json:
            text = [encodable(printable(part)) for part in (before, word, after)]
            self.command.stdout.write(f"{text[0]}{paint(text[1])}{text[2]}")

    def table(self, rows: list[list[str]]) -> None:
        """Print aligned rows for people."""
        for line in table([[printable(cell) for cell in row] for row in rows]):
            self.say(line)

    def warn(self, text: str) -> None:
        """Print a line beside the output."""
        self.command.stderr.write(encodable(printable(text)))

    def json(self, value: Any) -> None:
        """Print the value, with ``--json``."""
        if self.as_json:
            self.command.stdout.write(json.dumps(value, indent=2))

    def done(self, message: str, **fields: Any) -> None:
        """Say that it was done, or print its result object."""
        self.say(message)
        self.json(result(True, 0, message, fields))

    def end(self, message: str, code: int) -> NoReturn:
        """End with the exit code, which is the answer, and say why."""
        self.say(message)
        sys.exit(code)

    def refuse(self, message: str, code: int, **fields: Any) -> NoReturn:
        """End with the message and the exit code; print the result object as well."""
        self.json(result(False, code, message, fields))
        raise CommandError(encodable(printable(message)), returncode=code)


def result(done: bool, code: int, message: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return what an action prints as JSON."""
    return {"done": done, "exit_code": code, "message": message, **fields}


def about(service: LocksService, name: str, lease: LeaseInfo | None) -> dict[str, Any]:
    """Return the fields of a result object that say which lock it is about, and whose lease."""
    return {"name": name, "store": service.alias, "lease": lease and lease_object(lease, service.alias)}


def which(service: LocksService, name: str) -> str:
    """Return the beginning of a sentence about a lock."""
    return f"The lock {name!r} (store {service.alias!r})"


def hint(service: LocksService, *words: str) -> str:
    """Return a command line to go on with."""
    using = [] if service.alias == "default" else ["--using", service.alias]
    return shlex.join(["manage.py", "locks", *words, *using])


def lease_object(lease: LeaseInfo, alias: str) -> dict[str, Any]:
    """Return the lease for JSON, without its secret."""
    return {
        "name": lease.name,
        "store": alias,
        "holder": lease.holder,
        "fence": lease.fence,
        "acquired_at": lease.acquired_at.isoformat(timespec="microseconds"),
        "expires_at": lease.expires_at.isoformat(timespec="microseconds"),
        "remaining": round(lease.remaining, 6),
        "state": lease.state,
    }


HEADER = ["NAME", "STATE", "HOLDER", "AGE", "REMAINING", "FENCE"]


def lease_row(lease: LeaseInfo) -> list[str]:
    """Return the lease as a row under ``HEADER``."""
    age, remaining = describe_duration(age_of(lease)), describe_duration(lease.remaining)
    return [lease.name, lease.state, lease.holder, age, remaining, str(lease.fence)]


def lease_details(lease: LeaseInfo, alias: str) -> list[list[str]]:
    """Return the lease as rows of a word and what it says."""
    who, unless = ("note", "") if lease.state == "paused" else ("holder", ", unless renewed")
    return [
        ["name", lease.name],
        ["store", alias],
        ["state", lease.state],
        [who, lease.holder],
        ["since", f"{lease.acquired_at:%Y-%m-%d %H:%M:%S} UTC, {describe_duration(age_of(lease))} ago"],
        ["until", f"{lease.expires_at:%Y-%m-%d %H:%M:%S} UTC, {describe_duration(lease.remaining)} from now{unless}"],
        ["fence", str(lease.fence)],
    ]


def age_of(lease: LeaseInfo) -> float:
    """Return for how many seconds the lock has been taken, by the store's clock."""
    return (lease.expires_at - lease.acquired_at).total_seconds() - lease.remaining


def encodable(text: str) -> str:
    """Return the text as the terminal's encoding can have it."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
