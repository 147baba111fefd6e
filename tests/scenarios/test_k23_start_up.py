"""K23: what a reusable app does to its project before the first lock. (Migrations: tests/test_models.py.)"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

MANAGE = Path(__file__).parents[2] / "testproject" / "manage.py"

SETTINGS = """
from testproject.settings import *
PORT = "{port}"
STATIC_ROOT = "{static}"
DATABASES["locks"] = {{"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1", "PORT": PORT}}
LOCKS = {{
    "default": {{"BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": "redis://127.0.0.1:" + PORT}},
    "database": {{"BACKEND": "django_locks.stores.database.DatabaseStore", "LOCATION": "locks"}},
}}
"""

IMPORT_ALL = """
import importlib, pkgutil, django
django.setup()
import django_locks
for module in pkgutil.walk_packages(django_locks.__path__, "django_locks."):
    if not module.name.startswith("django_locks.contrib."):  # each needs a package and an app of its own
        importlib.import_module(module.name)
"""


class Doorbell:
    """A server that answers nobody, and counts who came."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.visits = 0
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                visitor, _ = self.listener.accept()
            except OSError:
                return
            self.visits += 1
            visitor.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def doorbell() -> Iterator[Doorbell]:
    doorbell = Doorbell()
    yield doorbell
    doorbell.close()


def run(doorbell: Doorbell, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "far_settings.py").write_text(SETTINGS.format(port=doorbell.port, static=folder / "static"))
    path = os.pathsep.join([str(folder), str(MANAGE.parents[1])])
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "far_settings",
        "PYTHONPATH": path,
        "DATABASE_URL": f"sqlite:///{folder / 'db.sqlite3'}",
    }
    return subprocess.run(
        [sys.executable, "-W", "error", *command], env=environ, capture_output=True, text=True, timeout=30, cwd=folder
    )


@pytest.mark.parametrize(
    "command",
    [
        ["check"],
        ["check", "--deploy"],
        ["collectstatic", "--no-input"],
        ["makemigrations", "--check", "--dry-run"],
        ["locks", "--help"],
    ],
    ids=" ".join,
)
def test_command_connects_to_no_store(command: list[str], doorbell: Doorbell, tmp_path: Path) -> None:
    """B095"""
    ended = run(doorbell, tmp_path, str(MANAGE), *command)
    assert ended.returncode == 0, ended.stderr
    assert doorbell.visits == 0


def test_importing_all_modules_connects_to_no_store(doorbell: Doorbell, tmp_path: Path) -> None:
    """B095"""
    ended = run(doorbell, tmp_path, "-c", IMPORT_ALL)
    assert ended.returncode == 0, ended.stderr
    assert doorbell.visits == 0


def test_the_doorbell_rings(doorbell: Doorbell, tmp_path: Path) -> None:
    """B095: the others can fail."""
    assert run(doorbell, tmp_path, str(MANAGE), "locks", "list").returncode == 69
    assert doorbell.visits > 0
