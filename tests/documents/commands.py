"""Command lines of the documentation: run where that can be done here, else read by the parser that is theirs."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from django.apps import apps
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.utils.module_loading import import_string
from packaging.requirements import Requirement

from django_locks import clock, locks
from django_locks.testing import hold
from tests.cli import end
from tests.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CRON = re.compile(r"(?:[\d*/,-]+\s+){5}")
ASSIGNMENT = re.compile(r"\w+=")
#: Management commands of the reader's project.
THEIRS = {"nightly", "send_mails", "fetch_mails"}
#: What neither takes a lock nor is ours to test: that the line is well-formed has to do.
NOT_OURS = {"git", "gunicorn", "set", "entrypoint.sh"}


class Theirs(BaseCommand):
    """A command of the reader's project."""

    def handle(self, *args: Any, **options: Any) -> None: ...


def run_script(text: str, folder: Path) -> None:
    """Run the lines of a shell script or a crontab, one after the other."""
    script = re.sub(f"^{CRON.pattern}", "", text, flags=re.MULTILINE)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for line in script.replace("\\\n", " ").splitlines():
        run_line(line, folder)


def run_line(line: str, folder: Path) -> None:
    """Run a command line, or check it."""
    words = shlex.split(line, comments=True)
    while "&&" in words:
        run_words(words[: words.index("&&")], folder)
        words = words[words.index("&&") + 1 :]
    run_words(words, folder)


def run_words(words: list[str], folder: Path) -> None:
    """Run a command, or check it."""
    while words and (ASSIGNMENT.match(words[0]) or Path(words[0]).name in ("exec", "python", "$@")):
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    name = Path(program).name
    ours = name != "manage.py" and (ROOT / program).is_file()
    if name not in NOT_OURS and not ours:
        RUNNERS[name](arguments, folder)


def run_manage(arguments: list[str], folder: Path) -> None:
    name, *rest = arguments
    get_commands().update(dict.fromkeys(THEIRS, Theirs()))  # the dictionary that Django keeps
    if name == "locks":
        run_locks(rest, folder)
    elif name not in THEIRS:
        load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(rest)


def run_locks(arguments: list[str], folder: Path) -> None:
    with _as_meant(arguments), _stubs(arguments, folder):
        ended = end(*arguments)
    fine = (0, 1) if arguments[0] == "doctor" else (0,)
    assert ended.code in fine, f"locks {shlex.join(arguments)}: {ended}"


@contextmanager
def _as_meant(arguments: list[str]) -> Iterator[None]:
    """Bring about what the subcommand is for: somebody holds the lock, or it is paused, or has been held."""
    subcommand, name = arguments[0], next((word for word in arguments[1:] if not word.startswith("-")), "")
    locks.lock(name or "cron:nightly").__enter__().__exit__(None, None, None)
    if subcommand in ("show", "extend", "release"):
        with hold(name, ttl=60), mock.patch("sys.stdin", mock.Mock(isatty=lambda: True, readline=lambda: "y\n")):
            yield
        return
    if subcommand == "resume":
        locks.pause(name, 60)
    with mock.patch.object(clock, "sleep", side_effect=KeyboardInterrupt) if subcommand == "watch" else nullcontext():
        yield
    locks.resume(name or "cron:nightly")


@contextmanager
def _stubs(arguments: list[str], folder: Path) -> Iterator[None]:
    """Let the program after ``--`` be one that does nothing, unless it is a management command."""
    program = arguments[arguments.index("--") + 1] if "--" in arguments else "true"
    if program not in get_commands():
        assert "/" not in program, "an example's program cannot be put there by a test"
        (folder / program).write_text("#!/bin/sh\n")
        (folder / program).chmod(0o755)
    with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
        yield


def check_pip(arguments: list[str], folder: Path) -> None:
    assert arguments[0] == "install"
    for requirement in map(Requirement, (word for word in arguments[1:] if not word.startswith("-"))):
        assert requirement.name in ("uv", PROJECT["project"]["name"]), requirement
        assert requirement.extras <= PROJECT["project"]["optional-dependencies"].keys(), requirement


def run_uv(arguments: list[str], folder: Path) -> None:
    if arguments[0] != "run":
        assert arguments[0] in ("sync", "build", "publish", "tool")
        return
    words = arguments[1:]
    while words[0] in ("--group", "--with", "--python"):
        assert words[0] != "--group" or words[1] in PROJECT["dependency-groups"], words[1]
        words = words[2:]
    if words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words[2]
    else:
        run_words(words, folder)


def check_paths(arguments: list[str], folder: Path) -> None:
    """The arguments that look like a path are one of the project."""
    for word in arguments:
        assert word.startswith("-") or "/" not in word or (ROOT / word.partition("::")[0]).exists() or "_build" in word


def check_celery(arguments: list[str], folder: Path) -> None:
    from celery.bin.celery import celery

    command = celery.get_command(None, next(word for word in arguments if word in celery.commands))
    context = command.make_context(command.name, arguments[arguments.index(command.name) + 1 :], resilient_parsing=True)
    if scheduler := context.params.get("scheduler"):
        module, _, name = scheduler.partition(":")
        assert importlib.util.find_spec(module), module
        if apps.is_installed("django_celery_beat"):
            import_string(f"{module}.{name}")


RUNNERS: dict[str, Callable[[list[str], Path], Any]] = {
    "manage.py": run_manage,
    "pip": check_pip,
    "uv": run_uv,
    "celery": check_celery,
    **dict.fromkeys(("pytest", "ruff", "mypy", "sphinx-build", "pre-commit", "bash"), check_paths),
}
