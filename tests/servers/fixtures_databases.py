"""The database servers as pytest fixtures, started once a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.servers import ServerMissing, databases


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Server]:
    yield from _started(databases.postgres)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[databases.Server]:
    yield from _started(databases.mariadb)


def _started(run: Callable[[], AbstractContextManager[databases.Server]]) -> Iterator[databases.Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(run())
        except ServerMissing as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(str(missing))
            pytest.skip(str(missing))
        yield server
