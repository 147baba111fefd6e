"""The types that a user's checker sees: the assertions of ``tests/typing/users.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USERS = "tests/typing/users.py"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=110)


def test_users_of_mypy_strict_see_the_types():
    checked = run("mypy", USERS)
    assert checked.returncode == 0, checked.stdout


def test_users_of_pyright_see_the_types():
    version = run("pyright", "--version")
    if version.returncode != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"pyright needs npm: {version.stderr[-300:]}")
    checked = run("pyright", "--pythonpath", sys.executable, USERS)
    assert checked.returncode == 0, checked.stdout
