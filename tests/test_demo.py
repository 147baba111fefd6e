"""The demo of the README, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.servers import databases, redis
from tests.servers.fixtures_redis import started

MANAGE = Path(__file__).parent.parent / "testproject" / "manage.py"


def demo(tmp_path, **env):
    variables = {key: value for key, value in os.environ.items() if key not in {"DATABASE_URL", "LOCKS_STORE"}}
    return subprocess.run(
        [sys.executable, str(MANAGE), "demo"],
        env={**variables, "DJANGO_SETTINGS_MODULE": "testproject.settings", "TMPDIR": str(tmp_path), **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.timeout(120)
def test_demo_shows_all_of_it_and_exits_0(tmp_path):
    ended = demo(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "NOT seen" not in ended.stdout
    for text in (
        "one replica runs",
        "takes over after one TTL",
        "its fence is higher",
        "cron:nightly  held",
        "runserver",
    ):
        assert text in ended.stdout
    assert "\x1b[" not in ended.stdout
    assert list(tmp_path.glob("django-locks-*/demo.sqlite3"))


@contextmanager
def database_url(run, scheme):
    with run() as server:
        entry = {"USER": "", "PASSWORD": "", "HOST": "", **server.settings}
        login = f"{quote(entry['USER'])}:{quote(entry['PASSWORD'])}"
        yield f"{scheme}://{login}@{entry['HOST']}:{entry['PORT']}/{entry['NAME']}"


SERVERS = {
    "postgresql": ({}, "DATABASE_URL", lambda: database_url(databases.postgres, "postgres")),
    "mariadb": ({}, "DATABASE_URL", lambda: database_url(databases.mariadb, "mysql")),
    "redis": ({"LOCKS_STORE": "redis"}, "REDIS_URL", redis.valkey),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", SERVERS)
def test_demo_passes_on_a_server(kind, tmp_path):
    env, variable, run = SERVERS[kind]
    with contextmanager(started)(run()) as url:
        ended = demo(tmp_path, **env, **{variable: url})
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert url not in ended.stdout, "it may hold a password"


def test_demo_in_memory_says_why_it_cannot(tmp_path):
    ended = demo(tmp_path, LOCKS_STORE="memory")
    assert ended.returncode == 1
    assert "memory of each process" in ended.stderr


def test_demo_on_a_database_that_cannot_be_opened_exits_1(tmp_path):
    ended = demo(tmp_path, DATABASE_URL=f"sqlite:///{tmp_path}/no/such/folder/db.sqlite3")
    assert ended.returncode == 1
    assert "could not be prepared" in ended.stderr
