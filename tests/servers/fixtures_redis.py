"""Fixtures of the servers in `tests.servers.redis`, one server of each kind a test run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from . import ServerMissing
from . import redis as servers

T = TypeVar("T")


def started(server: AbstractContextManager[T]) -> Iterator[T]:
    """Yield what the context manager yields; skip where it cannot start, but fail in CI."""
    try:
        value = server.__enter__()
    except ServerMissing as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))
    try:
        yield value
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    yield from started(servers.redis())


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    yield from started(servers.valkey())


@pytest.fixture(scope="session")
def cluster_urls() -> Iterator[list[str]]:
    yield from started(servers.cluster())
