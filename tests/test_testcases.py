"""Locks in the code under test of a project, on each database: nothing leaks, and test databases can be dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LONG = os.environ.get("LONG") == "1"
DATABASES = ["sqlite memory", "sqlite file", "postgresql", "mariadb"]


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return what the environment says about the database."""
    if request.param == "sqlite memory":
        return {"DATABASE_URL": "sqlite://"}
    if request.param == "sqlite file":
        return {"DATABASE_URL": f"sqlite:///{tmp_path}/db", "TEST_DATABASE_NAME": f"{tmp_path}/test_db"}
    server = request.getfixturevalue(request.param).settings
    scheme = "postgres" if request.param == "postgresql" else "mysql"
    return {"DATABASE_URL": f"{scheme}://{server['USER']}@{server['HOST']}:{server['PORT']}/{server['NAME']}"}


def run(database: dict[str, str], *command: str) -> str:
    """Run Python with warnings as errors; return what it said."""
    env = {**os.environ, **database, "DJANGO_SETTINGS_MODULE": "tests.inner.settings"}
    for name in ("LOCKS_STORE", "PYTEST_ADDOPTS"):
        env.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "-W", "error", *command], env=env, cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    for bad in ("Warning", "Exception ignored", "could not", "Traceback"):
        assert bad not in said, said
    return said


MANAGE = ["testproject/manage.py", "test", "--noinput", "-v", "1"]


def test_django_s_test_cases(database: dict[str, str]) -> None:
    assert "OK" in run(database, *MANAGE, "--shuffle=1", "tests.inner.locked_tests")


@pytest.mark.parametrize("database", DATABASES if LONG else ["postgresql"], indirect=True)
def test_django_s_test_cases_in_parallel(database: dict[str, str]) -> None:
    assert "OK" in run(database, *MANAGE, "--parallel=2", "tests.inner.locked_tests")


def test_fixtures_of_pytest_django(database: dict[str, str]) -> None:
    quiet: list[Any] = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    assert "passed" in run(
        database, "-m", "pytest", "-n0", *quiet, "--ds=tests.inner.settings", "tests/inner/locked_by_pytest.py"
    )
