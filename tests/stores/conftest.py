"""Servers for the tests of the Redis store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import redis as servers
from tests.servers.fixtures_redis import started

from .redis_site import Site, cleaned


@pytest.fixture(params=["redis_url", "valkey_url"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from cleaned(Site([request.getfixturevalue(request.param)]))


@pytest.fixture
def cluster(cluster_urls: list[str]) -> Iterator[Site]:
    yield from cleaned(Site(cluster_urls, cluster=True))


@pytest.fixture(params=["redis_url", "valkey_url", "cluster_urls"])
def any_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    urls = request.getfixturevalue(request.param)
    yield from cleaned(Site(urls, cluster=True) if isinstance(urls, list) else Site([urls]))


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A server of its own, to be ill-treated."""
    yield from started(servers.running(servers.valkey_binary()))


@pytest.fixture
def cluster_servers() -> Iterator[list[servers.Server]]:
    yield from started(servers.cluster_servers())
