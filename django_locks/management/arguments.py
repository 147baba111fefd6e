"""The command line of ``manage.py locks``: its parser, and the kinds of argument it takes."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandParser

from django_locks.values import clean_duration, clean_name, clean_wait

FREE, USAGE, BUSY = 1, 2, 75

CODES = "Exit codes: 0 done, 2 wrong usage, 69 the store is unreachable, 78 the setting LOCKS is wrong"
LIST_HELP = f"""{CODES}.

With --json, an array of objects: name, store, holder, fence, acquired_at and expires_at (ISO 8601, UTC, by the
store's clock), remaining (seconds), state ("held", or "cooling": kept after its run by at_least).

Example: manage.py locks list --prefix cron: --json"""
SHOW_HELP = f"""{CODES}, {FREE} the lock is free.

With --json, one object as `locks list` has them, or null for a free lock.

Example: manage.py locks show cron:nightly"""
RELEASE_HELP = f"""A lease is freed although its holder may be at work under it. The holder is told when it next renews.
Only the lease that was shown is freed, never one that was granted in the meantime.

{CODES}, {FREE} nothing was freed.

Example: manage.py locks release cron:nightly --force"""
RUN_HELP = f"""Options come before the --, the command after it. A management command runs in this process,
anything else as a child: write its path (/usr/bin/test) where both have the name. The lease is renewed for as
long as the command runs.

{CODES},
{BUSY} somebody else holds the lock (or the code of -E), 74 the lease was lost; otherwise the command's own,
128 + N when signal N killed it, 127 not found, 126 not executable.

Example: manage.py locks run cron:nightly -w 10s --ttl 2h -- nightly --verbosity 2"""

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_subcommands(parser: CommandParser) -> None:
    """Give the command its subcommands."""
    subcommands = parser.add_subparsers(
        dest="subcommand", required=True, metavar="SUBCOMMAND", parser_class=LocksParser
    )
    listing = _add(subcommands, "list", "List the locks that are held.", LIST_HELP)
    listing.add_argument("--prefix", default="", help="only names that begin with it")
    listing.add_argument("--json", action="store_true", help="print JSON")

    show = _add(subcommands, "show", "Show who holds a lock.", SHOW_HELP)
    show.add_argument("name", type=lock_name, help="name of the lock, without KEY_PREFIX")
    show.add_argument("--json", action="store_true", help="print JSON")

    release = _add(subcommands, "release", "Free a lock that somebody holds.", RELEASE_HELP)
    release.add_argument("name", type=lock_name, help="name of the lock, without KEY_PREFIX")
    release.add_argument("--force", action="store_true", help="do it: without, only say what would be freed")
    release.add_argument("--yes", action="store_true", help="don't ask for confirmation")

    run = _add(subcommands, "run", "Run a command while holding a lock.", RUN_HELP, ends_at_dashes=True)
    run.usage = f"{run.prog} NAME [-n | -w SEC] [-E CODE] [--ttl TTL] [--at-least TIME] [--using ALIAS] -- COMMAND …"
    run.add_argument("name", type=lock_name, help="name of the lock, without KEY_PREFIX")
    _add_run_options(run)


def _add(subcommands: Any, name: str, help: str, epilog: str, **options: Any) -> CommandParser:
    parser: CommandParser = subcommands.add_parser(name, help=help, description=help, epilog=epilog, **options)
    parser.add_argument("--using", default="default", metavar="ALIAS", help="alias in LOCKS (default: default)")
    add_django_options(parser)
    return parser


def _add_run_options(run: CommandParser) -> None:
    waiting = run.add_mutually_exclusive_group()
    waiting.add_argument(
        "-n", "--no-wait", dest="wait", action="store_const", const=0, default=0, help="don't wait (the default)"
    )
    waiting.add_argument("-w", "--wait", type=wait, metavar="SEC", help="wait for the lock so long at the most")
    run.add_argument(
        "-E",
        "--busy-code",
        type=exit_code,
        default=BUSY,
        metavar="CODE",
        help=f"exit code when somebody else holds the lock (default: {BUSY})",
    )
    run.add_argument("--ttl", type=duration, help="free the lock after so long if this process dies")
    run.add_argument(
        "--at-least", type=duration, metavar="TIME", help="keep the lock for so long, even if the run is shorter"
    )


class LocksParser(CommandParser):
    """A parser that, with ``ends_at_dashes``, reads its options before the first ``--`` and keeps the rest as it is.

    The rest is found under ``command``. A nested parser of Python 3.11 hands ``--`` on, 3.12 and 3.13 drop it under
    conditions of their own, and each would take an option of the command for one of its own.
    """

    def __init__(self, *, ends_at_dashes: bool = False, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)
        self.ends_at_dashes = ends_at_dashes

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.ends_at_dashes:
            return super().parse_known_args(args, namespace)
        options, command = _split(args or [])
        namespace, rest = super().parse_known_args(options, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)} (the command comes after --)")
        if not command:
            self.error("a command to run is missing: locks run NAME -- COMMAND …")
        namespace.command = command
        return namespace, []


def _split(args: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in args:
        return args, []
    at = list(args).index("--")
    return args[:at], args[at + 1 :]


def add_django_options(parser: CommandParser) -> None:
    """Let a subcommand take, after its name, the options that all management commands have."""
    absent: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **absent)
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, **absent)
    for option in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(option, action="store_true", **absent)


def seconds(text: str) -> float:
    """Return the seconds of ``90``, ``500ms``, ``30s``, ``10m``, ``2h`` or ``7d``."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", text, re.ASCII)
    if match is None:
        raise ArgumentTypeError(
            f"{text!r} is no duration. Write seconds, or a number and a unit: 90, 500ms, 30s, 10m, 2h, 7d."
        )
    return float(match[1]) * UNITS[match[2] or ""]


def duration(text: str) -> float:
    """Return a duration of more than zero seconds."""
    with _refusals():
        return clean_duration(seconds(text), "the duration")


def wait(text: str) -> float:
    """Return how many seconds to wait."""
    with _refusals():
        return clean_wait(seconds(text), "the wait")


def lock_name(text: str) -> str:
    """Return the name of a lock."""
    with _refusals():
        return clean_name(text)


def exit_code(text: str) -> int:
    """Return an exit code, 0 to 255."""
    if not re.fullmatch("[0-9]{1,3}", text, re.ASCII) or int(text) > 255:
        raise ArgumentTypeError(f"{text!r} is no exit code. Write a number from 0 to 255.")
    return int(text)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
