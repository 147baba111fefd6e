"""One server of Redis or Valkey."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis as driver

from tests.chaos.nemesis import Fault
from tests.conftest import REDIS
from tests.crew import Spec
from tests.servers import redis as servers
from tests.servers.proxy import proxy

from . import ALIAS, Site
from .network import network_faults

FEW = 4  #: clients that a full server lets in
SMALL_POOL = 2  #: connections of a process that are soon all in use


@contextmanager
def lasting(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """Redis, which forgets nothing: each write is in its file before it is answered."""
    with servers.running(servers.redis_binary(), "--appendonly", "yes", "--appendfsync", "always") as server:
        yield from _site(server, data, ttl, "restart")


@contextmanager
def forgetful(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """Valkey without persistence."""
    with servers.running(servers.valkey_binary()) as server:
        yield from _site(server, data, ttl, "restart empty")


def _site(server: servers.Server, data: dict[str, Any], ttl: float, restart: str) -> Iterator[Site]:
    faults = [
        Fault.between(restart, server.stop, server.start),
        Fault.between("hang", server.pause, server.resume),
        Fault("refuse clients", _full(server)),
        Fault.between("flush", lambda: flush([server.url])),
    ]
    with proxy(server.port) as network:
        near, far = (
            Spec({"BACKEND": REDIS, "LOCATION": f"redis://127.0.0.1:{port}", "OPTIONS": options}, {ALIAS: data})
            for port, options in ((server.port, {}), (network.port, {"max_connections": SMALL_POOL}))
        )
        yield Site(near, far, faults + network_faults(network, ttl))


def flush(urls: list[str]) -> None:
    for url in urls:
        with driver.Redis.from_url(url) as client:
            client.flushall()


def _full(server: servers.Server) -> Any:
    @contextmanager
    def inject(chance: random.Random) -> Iterator[None]:
        with driver.Redis.from_url(server.url) as client:
            before = client.config_get("maxclients")["maxclients"]
            client.config_set("maxclients", FEW)
            client.client_kill_filter(_type="normal", skipme=True)
            yield
            client.config_set("maxclients", before)

    return inject
