"""The parsers of ``manage.py locks`` and its subcommands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser


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


def add_common_options(parser: CommandParser, over_all: bool, default_alias: str | None) -> None:
    """Add what every subcommand takes: the store, ``--json``, and the options of all management commands.

    The latter a second time, so that they may follow the subcommand's name.
    """
    stores = parser.add_mutually_exclusive_group()
    usual = "all" if default_alias is None else default_alias
    stores.add_argument("--using", metavar="ALIAS", help=f"store in LOCKS (default: {usual})")
    if over_all:
        stores.add_argument("--all", dest="everywhere", action="store_true", help="every store in LOCKS")
    parser.add_argument("--json", action="store_true", help="print JSON: see docs/json.md")
    absent: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **absent)
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, **absent)
    for option in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(option, action="store_true", **absent)
