from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.crew import Crew, Spec
from tests.ram import use_ram

use_ram()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script, and inherited by processes
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.servers.fixtures_databases",
    "tests.servers.fixtures_redis",
    "tests.cli_fixtures",
    "tests.faulty_sites",
]

MEMORY = "django_locks.stores.memory.MemoryStore"
REDIS = "django_locks.stores.redis.RedisStore"
DATABASE = "django_locks.stores.database.DatabaseStore"

BACKENDS = {
    "memory": MEMORY,
    **dict.fromkeys(("redis", "valkey", "cluster"), REDIS),
    **dict.fromkeys(("sqlite", "postgresql", "mariadb"), DATABASE),
}
SHARED_STORES = ["redis", "valkey", "cluster", "sqlite", "postgresql", "mariadb"]
STORES = list(BACKENDS)

# Those that take longest, before all others: at the end one would be waited for. Next to those that start many
# processes are some that mostly sleep.
LONGEST = [
    "test_faults",
    "test_endings",
    "test_stopped_holder",
    "test_lost_update",
    "test_demo",
    "test_race",
    "test_command_signals",
    "test_async",
    "test_async_loss",
    "test_command_process",
    "test_contract",
    "test_documentation",
    "test_k07_residue",
    "test_command_bootstrap",
    "test_redis_faults",
    "test_waiting",
]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos", "tests/chaos: faults at random")
    group.addoption("--chaos-minutes", type=float, default=0.0, help="how long each store is disturbed")
    group.addoption("--chaos-seed", default="", help="of an earlier run, whose faults are to come again")


@pytest.fixture
def spec_of(request: pytest.FixtureRequest) -> Any:
    """Return the settings of a store by its kind, with its server running and its table made."""

    emptied: set[str] = set()

    def empty(kind: str) -> Any:
        """Return the URL of the server, or those of a cluster, which hold nothing of an earlier test's."""
        found: Any = request.getfixturevalue("cluster_urls" if kind == "cluster" else f"{kind}_url")
        if kind not in emptied:
            emptied.add(kind)
            for url in [found] if isinstance(found, str) else found:
                with redis.Redis.from_url(url) as client:
                    client.flushall()
        return found

    def spec(kind: str, **entry: Any) -> Spec:
        if kind == "memory":
            return Spec({"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, **entry})
        if kind in ("redis", "valkey"):
            return Spec({"BACKEND": REDIS, "LOCATION": empty(kind), **entry})
        if kind == "cluster":
            return Spec({"BACKEND": REDIS, "LOCATION": empty(kind), "OPTIONS": {"cluster": True}, **entry})
        from django.db import connections

        alias = request.getfixturevalue("connect")(kind)
        return Spec({"BACKEND": DATABASE, "LOCATION": alias, **entry}, {alias: connections.settings[alias]})

    return spec


@pytest.fixture(params=STORES)
def any_store(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use each store in turn."""
    spec: Spec = spec_of(request.param)
    settings.LOCKS = {"default": spec.locks}
    return spec


@pytest.fixture(params=SHARED_STORES)
def shared_store(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use each store in turn that processes share."""
    spec: Spec = spec_of(request.param)
    settings.LOCKS = {"default": spec.locks}
    return spec


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Sixteen processes, started once."""
    crew = Crew(16)
    yield crew
    crew.close()
