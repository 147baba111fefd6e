"""The database servers as pytest fixtures, started once a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from tests.servers import ServerMissing, databases
from tests.servers.aliases import empty, registered

#: Give an alias to a kind of database ("sqlite", "postgresql", "mariadb"), with changes to its entry in DATABASES.
Connect = Callable[..., str]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[databases.Server]:
    yield from _started(databases.postgres)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[databases.Server]:
    yield from _started(databases.mariadb)


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sqlite") / "locks.sqlite3"


@pytest.fixture
def connect(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[Connect]:
    emptied: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())

        def connect(kind: str, alias: str = "", *, migrate: bool = True, **changes: Any) -> str:
            settings = {**_settings(request, kind), **changes}
            alias = stack.enter_context(registered(alias or f"locks_{kind}", settings, migrate=migrate))
            if migrate and kind not in emptied:
                empty(alias)
                emptied.add(kind)
            return alias

        yield connect


def _settings(request: pytest.FixtureRequest, kind: str) -> dict[str, Any]:
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(request.getfixturevalue("sqlite_file"))}
    server: databases.Server = request.getfixturevalue(kind)
    return server.settings


def _started(run: Callable[[], AbstractContextManager[databases.Server]]) -> Iterator[databases.Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(run())
        except ServerMissing as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(str(missing))
            pytest.skip(str(missing))
        yield server
