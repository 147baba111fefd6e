from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.core.management.base import CommandParser

from django_locks import clock
from django_locks.commands import terminated_in_order
from django_locks.exceptions import StoreUnavailable
from django_locks.management.arguments import duration
from django_locks.management.output import HEADER, encodable, lease_object, lease_row
from django_locks.management.subcommands.base import CODES, Subcommand
from django_locks.service import LocksService
from django_locks.text import cut, printable, table
from django_locks.values import LeaseInfo

# https://invisible-island.net/xterm/ctlseqs/ctlseqs.html
OTHER_SCREEN, FIRST_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Watch(Subcommand):
    name = "watch"
    help = "Watch who holds what: a live table, or a line a change."
    epilog = f"""On a terminal, a table that is renewed until Ctrl-C; into a pipe or a file, one line a change. A store
that is unreachable is said to be so, and asked again.

{CODES} (Ctrl-C ends with 0).

With --json, one object a line and change: at, change ("held", "cooling", "paused", "freed", "unreachable"), lease.

Example: manage.py locks watch --prefix cron:"""
    over_all = True

    @classmethod
    def add_arguments(cls, parser: CommandParser) -> None:
        parser.add_argument("--prefix", default="", help="only names that begin with it")
        parser.add_argument(
            "--interval", type=duration, default=1.0, metavar="TIME", help="look so often (default: 1s)"
        )

    def handle(
        self, services: list[LocksService], *, prefix: str, interval: float, everywhere: bool, **options: Any
    ) -> None:
        live = not self.out.as_json and self.out.command.stdout.isatty()
        show = _Table(self._write, everywhere) if live else _Changes(self._write_line, self.out.as_json)
        with terminated_in_order(), _screen(self._write) if live else _nothing():
            try:
                while True:
                    show([_look(service, prefix) for service in services])
                    clock.sleep(interval)
            except (KeyboardInterrupt, BrokenPipeError):
                return

    def _write_line(self, line: str) -> None:
        self._write(f"{encodable(line)}\n")

    def _write(self, text: str) -> None:
        self.out.command.stdout.write(text, ending="")
        self.out.command.stdout.flush()


class _Seen(NamedTuple):
    alias: str
    leases: list[LeaseInfo]
    fault: str = ""


def _look(service: LocksService, prefix: str) -> _Seen:
    try:
        return _Seen(service.alias, list(service.leases(prefix)))
    except StoreUnavailable as error:
        return _Seen(service.alias, [], str(error))


class _Table:
    """Draws what is seen over what was drawn before."""

    def __init__(self, write: Callable[[str], None], everywhere: bool) -> None:
        self._write = write
        self._everywhere = everywhere

    def __call__(self, seen: list[_Seen]) -> None:
        columns, lines = shutil.get_terminal_size()
        rows = [["STORE", *HEADER], *([look.alias, *lease_row(lease)] for look in seen for lease in look.leases)]
        shown = [[printable(cell) for cell in row[0 if self._everywhere else 1 :]] for row in rows[: lines - 2]]
        body = table(shown) + [printable(look.fault) for look in seen if look.fault]
        count = len(rows) - 1
        hidden = f", {len(rows) - len(shown)} more below" if len(rows) > len(shown) else ""
        stores = ", ".join(look.alias for look in seen)
        foot = f"{clock.wall():%H:%M:%S} UTC  {count} taken{hidden}  store {stores}  Ctrl-C ends"
        picture = [*body[: lines - 2], "", foot]
        self._write(HOME + "\n".join(encodable(cut(line, columns)) + REST_OF_LINE for line in picture) + REST_OF_SCREEN)


class _Changes:
    """Prints what differs from what was seen before."""

    def __init__(self, write_line: Callable[[str], None], as_json: bool) -> None:
        self._write_line = write_line
        self._as_json = as_json
        self._before: dict[tuple[str, str], LeaseInfo] = {}
        self._faults: dict[str, str] = {}

    def __call__(self, seen: list[_Seen]) -> None:
        for look in seen:
            if look.fault:
                if look.alias not in self._faults:
                    self._print("unreachable", look.alias, None, look.fault)
                self._faults[look.alias] = look.fault
                continue
            self._faults.pop(look.alias, None)
            self._compare(look)

    def _compare(self, look: _Seen) -> None:
        now = {(look.alias, lease.name): lease for lease in look.leases}
        for key in [key for key in self._before if key[0] == look.alias and key not in now]:
            self._print("freed", look.alias, self._before.pop(key))
        for key, lease in now.items():
            before = self._before.get(key)
            if before is None or (before.fence, before.state) != (lease.fence, lease.state):
                self._print(lease.state, look.alias, lease)
            self._before[key] = lease

    def _print(self, change: str, alias: str, lease: LeaseInfo | None, fault: str = "") -> None:
        at = clock.wall()
        if self._as_json:
            what = {"lease": lease and lease_object(lease, alias), "message": fault}
            self._write_line(
                json.dumps({"at": at.isoformat(timespec="milliseconds"), "change": change, "store": alias, **what})
            )
            return
        who = f"{lease.name}  store {alias}  {lease.holder}  fence {lease.fence}" if lease else fault
        self._write_line(printable(f"{at:%Y-%m-%d %H:%M:%S} UTC  {change:7}  {who}"))


@contextmanager
def _screen(write: Callable[[str], None]) -> Iterator[None]:
    write(OTHER_SCREEN)
    try:
        yield
    finally:
        write(FIRST_SCREEN)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
