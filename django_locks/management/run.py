"""Run a command as ``manage.py locks run`` does: in this process, or as a child of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from django_locks.guard import LockGuard
from django_locks.management.child import Child

NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128  # as a shell has it: POSIX, Shell Command Language, 2.8.2
NAME, FENCE = "DJANGO_LOCK_NAME", "DJANGO_LOCK_FENCE"


class Run:
    """One run of a command line. A management command of the project runs in process, anything else as a child."""

    def __init__(self, argv: Sequence[str], grace: float) -> None:
        self.program, *self.arguments = argv
        app = get_commands().get(self.program)
        self._way = _ChildProcess(argv, grace) if app is None else _InProcess(app, argv, grace)
        #: Was it told to end, since its lease was lost?
        self.stopped = False

    def __call__(self, guard: LockGuard) -> int:
        """Run to the end and return the exit code: the command's own, or 128 and the number of the signal."""
        with _exported({NAME: guard.name, FENCE: str(guard.fence)}):
            return self._way.run(guard)

    def stop(self, guard: LockGuard) -> None:
        """Terminate the command as SIGTERM does, and by force after the grace time. For any thread."""
        self.stopped = True
        self._way.stop()


class _ChildProcess:
    def __init__(self, argv: Sequence[str], grace: float) -> None:
        self._program = argv[0]
        self._child = Child(argv, grace)
        self.stop = self._child.stop

    def run(self, guard: LockGuard) -> int:
        try:
            code = self._child.run()
        except FileNotFoundError:
            raise CommandError(
                f"{self._program}: not found, neither a program nor a management command.", returncode=NOT_FOUND
            ) from None
        except OSError as error:
            raise CommandError(f"{self._program}: {error.strerror}.", returncode=NOT_EXECUTABLE) from error
        return code if code >= 0 else BY_SIGNAL - code


class _InProcess:
    def __init__(self, app: str | BaseCommand, argv: Sequence[str], grace: float) -> None:
        self._app, self._grace = app, grace
        self._program, *self._arguments = argv
        self._running = False
        self._turn = threading.Lock()

    def run(self, guard: LockGuard) -> int:
        self._refuse_other_settings()
        command = self._app if isinstance(self._app, BaseCommand) else load_command_class(self._app, self._program)
        guard.enforce()  # a body that swallows the signal of a loss writes nothing more
        try:
            with self._stoppable():
                # As manage.py does, so that the command's errors get the exit codes that they have there.
                command.run_from_argv([sys.argv[0], self._program, *self._arguments])
        except SystemExit as end:
            return _exit_code(end)
        except KeyboardInterrupt:
            return BY_SIGNAL + signal.SIGINT
        return 0

    def stop(self) -> None:
        with self._turn:
            if self._running and hasattr(signal, "pthread_kill"):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                force = threading.Timer(self._grace, self._end_by_force)
                force.daemon = True
                force.start()

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        # Without a handler, SIGTERM would end the process without a release.
        handled = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        self._running = handled and threading.current_thread() is threading.main_thread()
        try:
            yield
        finally:
            with self._turn:
                self._running = False

    def _end_by_force(self) -> None:
        with self._turn:
            if self._running:
                os.write(2, f"{self._program} did not end after its lease was lost: killed.\n".encode())
                os._exit(74)

    def _refuse_other_settings(self) -> None:
        for argument in self._arguments:
            if argument.partition("=")[0] in ("--settings", "--pythonpath"):
                raise CommandError(
                    f"{self._program} runs in this process, whose settings are loaded: put {argument} before the --.",
                    returncode=2,
                )


@contextmanager
def _exported(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    # UTF-8 whatever the locale, as the name may have characters that it lacks.
    os.environ.update({name: os.fsdecode(value.encode()) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201
    return 1
