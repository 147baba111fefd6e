"""Run a command as ``manage.py locks run`` does: in this process, or as a child of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128  # as a shell has it: POSIX, Shell Command Language, 2.8.2


class Run:
    """One run of a command line. A management command of the project runs in process, anything else as a child."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.program, *self.arguments = argv

    def __call__(self) -> int:
        """Run to the end and return the exit code: the command's own, or 128 and the number of the signal."""
        app = get_commands().get(self.program)
        return self._child() if app is None else self._in_process(app)

    def _in_process(self, app: str | BaseCommand) -> int:
        self._refuse_other_settings()
        command = app if isinstance(app, BaseCommand) else load_command_class(app, self.program)
        try:
            # As manage.py does, so that the command's errors get the exit codes that they have there.
            command.run_from_argv([sys.argv[0], self.program, *self.arguments])
        except SystemExit as end:
            return _exit_code(end)
        return 0

    def _refuse_other_settings(self) -> None:
        for argument in self.arguments:
            if argument.partition("=")[0] in ("--settings", "--pythonpath"):
                raise CommandError(
                    f"{self.program} runs in this process, whose settings are loaded: put {argument} before the --.",
                    returncode=2,
                )

    def _child(self) -> int:
        try:
            ended = subprocess.run([self.program, *self.arguments], check=False)  # noqa: S603
        except FileNotFoundError:
            raise CommandError(
                f"{self.program}: not found, neither a program nor a management command.", returncode=NOT_FOUND
            ) from None
        except OSError as error:
            raise CommandError(f"{self.program}: {error.strerror}.", returncode=NOT_EXECUTABLE) from error
        return ended.returncode if ended.returncode >= 0 else BY_SIGNAL - ended.returncode


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201
    return 1
