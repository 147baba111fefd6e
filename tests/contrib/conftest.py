from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from django_locks import LockGuard, locks
from tests.conftest import REDIS

ROOT = Path(__file__).parent.parent.parent
DEADLINE = 30


class Site:
    """A project of its own for processes, and this process's ``locks`` in the same Valkey."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.contrib.settings",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "QUEUE_URL": url,
            "QUEUE_DATABASE": str(folder / "site.sqlite3"),
            "QUEUE_APPS": "",
        }
        self.processes = ExitStack()

    def start(self, *command: str, name: str = "worker", **env: str) -> subprocess.Popen[bytes]:
        """Start ``python -m command`` in the folder, to be killed at the end of the test."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**self.env, **env},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.callback(end, process)
        return process

    def run(self, *command: str, **env: str) -> str:
        """Run ``python command`` to its end, and return what it printed."""
        ended = subprocess.run(
            [sys.executable, *command],
            env={**self.env, **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def script(self, text: str, **env: str) -> Any:
        """Run a script in the project, and return what its last line says in JSON."""
        return json.loads(self.run("-c", "import django; django.setup()\n" + text, **env).splitlines()[-1])

    def load(self, name: str) -> Any:
        """Import a module of this folder that reads where its queue is."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QUEUE_URL", self.url)
            return importlib.import_module(f"tests.contrib.{name}")

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its children."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
    process.wait()


def eventually(condition: Callable[[], Any], site: Site | None = None, seconds: float = DEADLINE) -> Any:
    """Wait until the callable returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"It did not happen within {seconds} s. {site.logs() if site else ''}"
        time.sleep(0.03)
    return value


@pytest.fixture(scope="module")
def site(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"), valkey_url)
    with site.processes:
        yield site


@pytest.fixture(autouse=True)
def _shared_locks(site: Site, settings: Any) -> None:
    """Let the locks of this process and of the site's be the same."""
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": site.url, "TTL": 10}}


@pytest.fixture
def busy() -> Iterator[Callable[[str], LockGuard]]:
    """Return what takes a lock of that name, until the end of the test or its release."""
    guards = []

    def take(name: str) -> LockGuard:
        guards.append(locks.acquire(name))
        return guards[-1]

    yield take
    for guard in guards:
        guard.release()
