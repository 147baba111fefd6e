"""``manage.py locks``: look at locks, free, extend and pause them by hand, run a command under one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_locks import conf
from django_locks.conf import entries, locks
from django_locks.exceptions import InvalidLockStore, LockError
from django_locks.management.parser import LocksParser, add_common_options
from django_locks.management.subcommands import SUBCOMMANDS
from django_locks.service import LocksService
from django_locks.text import printable

INTERRUPTED = 130


class Command(BaseCommand):
    """Look at locks, free, extend and pause them by hand, run a command under one, examine the stores."""

    help = "Look at locks, free, extend and pause them by hand, run a command under one, examine the stores."
    requires_system_checks = []  # a wrong LOCKS ends in its exit code and its message

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(
            dest="subcommand", required=True, metavar="SUBCOMMAND", parser_class=LocksParser
        )
        for name, kind in SUBCOMMANDS.items():
            subparser = parsers.add_parser(
                name, help=kind.help, description=kind.help, epilog=kind.epilog, ends_at_dashes=kind.ends_at_dashes
            )
            kind.add_arguments(subparser)
            add_common_options(subparser, kind.over_all, kind.default_alias)

    def handle(
        self,
        *args: Any,
        subcommand: str,
        using: str | None = None,
        json: bool = False,
        everywhere: bool = False,
        **options: Any,
    ) -> None:
        with _exit_codes():
            kind = SUBCOMMANDS[subcommand]
            alias = None if everywhere else using or kind.default_alias
            aliases = _aliases() if alias is None else [alias]
            services = [locks.using(alias) for alias in aliases]
            if not kind.examines_settings:
                for service in services:
                    self._warn_if_alone(service)
            kind(self, json).handle(services, everywhere=everywhere, **options)

    def _warn_if_alone(self, service: LocksService) -> None:
        if entries(service.alias).store.process_local:
            self.stderr.write(
                f"The store {service.alias!r} keeps its leases in the memory of each process: this command sees and "
                "excludes no other. Choose the database store or the Redis store in LOCKS."
            )


def _aliases() -> list[str]:
    configured = conf.configured()
    return list(configured) if isinstance(configured, Mapping) else ["default"]


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except (LockError, InvalidLockStore) as error:
        raise CommandError(printable(str(error)), returncode=error.exit_code) from error
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
