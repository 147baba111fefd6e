"""``manage.py locks`` as the tests call it: in process for what it says, as a process for how it ends."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from django.core.management import call_command
from django.core.management.base import CommandError

from django_locks.management.commands.locks import Command

MANAGE = Path(__file__).parent.parent / "testproject" / "manage.py"


class Ended(NamedTuple):
    """How the command ended in this process."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def end(*args: str) -> Ended:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            Command(stdout=out, stderr=err, no_color=True).run_from_argv(["manage.py", "locks", *args])
        except SystemExit as error:
            code = error.code
    return Ended(code, out.getvalue(), err.getvalue())


def say(*args: str) -> str:
    """Return what the command prints."""
    out = io.StringIO()
    call_command("locks", *args, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def fail(*args: str) -> tuple[str, int]:
    """Return the message and the exit code with which the command ends."""
    try:
        say(*args)
    except CommandError as error:
        return str(error), error.returncode
    raise AssertionError("it did not fail")


def manage(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``manage.py`` to its end."""
    return subprocess.run(
        [sys.executable, str(MANAGE), *args],
        env=env,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


class Running:
    """A process of ``manage.py``, whose output can be waited for."""

    def __init__(self, env: dict[str, str], folder: Path, *args: str, **options: Any) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(MANAGE), *args],
                env={**env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                **options,
            )

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Wait until it has printed the text."""
        wait_until(lambda: text in self.text or self.process.poll() is not None, seconds)
        assert text in self.text, self.text

    @property
    def text(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 30) -> int:
        """Wait for its end and return its exit code."""
        return self.process.wait(seconds)


@contextmanager
def running(env: dict[str, str], folder: Path, *args: str, **options: Any) -> Any:
    """Run ``manage.py`` meanwhile."""
    process = Running(env, folder, *args, **options)
    try:
        yield process
    finally:
        process.process.terminate()  # in good order, so that neither its child nor its lease is left behind
        try:
            process.end()
        except subprocess.TimeoutExpired:
            process.process.kill()
            process.process.wait()
            raise


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of the test project."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "LOCKS_STORE": "",
        "DATABASE_URL": "",
        **changes,
    }


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Poll until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
