"""What every subcommand of ``manage.py locks`` is."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from django_locks.management.arguments import lock_name
from django_locks.management.output import Output
from django_locks.service import LocksService

FREE, USAGE, BUSY = 1, 2, 75

CODES = "Exit codes: 0 done, 2 wrong usage, 69 store unreachable, 78 LOCKS is wrong"


class Subcommand:
    """One subcommand; a file each. ``help`` is one sentence, ``epilog`` tells exit codes and gives an example."""

    name: ClassVar[str]
    help: ClassVar[str]
    epilog: ClassVar[str]
    #: Does it take a command after ``--``?
    ends_at_dashes: ClassVar[bool] = False
    #: Can it do its work over every store at once, on ``--all``?
    over_all: ClassVar[bool] = False
    #: Which store without ``--using``; ``None``: all of them.
    default_alias: ClassVar[str | None] = "default"
    #: Does it speak of wrong settings itself?
    examines_settings: ClassVar[bool] = False

    def __init__(self, command: BaseCommand, as_json: bool) -> None:
        self.out = Output(command, as_json)

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        """Add the arguments of this subcommand alone."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it over these stores: a list of services, and the options by keyword."""
        raise NotImplementedError


def add_name(parser: CommandParser) -> None:
    """Let the subcommand be about one lock."""
    parser.add_argument("name", type=lock_name, metavar="NAME", help="name of the lock, without KEY_PREFIX")


class AboutOne(Subcommand):
    """A subcommand about one lock of one store."""

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        add_name(parser)

    def handle(self, services: list[LocksService], **options: Any) -> None:
        self.handle_one(services[0], **options)

    def handle_one(self, *args: Any, **options: Any) -> None:
        """Do it to the lock: a service, and ``name`` and the options by keyword."""
        raise NotImplementedError
