"""What hypothesis finds out about the stores, by way of `tests.stores.model`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.utils.module_loading import import_string
from hypothesis.stateful import run_state_machine_as_test

from django_locks.stores.base import BaseStore
from django_locks.stores.memory import MemoryStore
from tests.conftest import STORES
from tests.crew import Spec
from tests.fuzz.profile import LONG, examples
from tests.servers.aliases import empty
from tests.stores.model import StoreMachine

#: Examples of some thirty steps each: about two seconds a store.
EXAMPLES = {"memory": 60, "redis": 60, "valkey": 60, "cluster": 12, "sqlite": 60, "postgresql": 20, "mariadb": 14}


def maker(spec: Spec) -> Callable[[], BaseStore]:
    entry = spec.locks
    return lambda: import_string(entry["BACKEND"])("default", entry["LOCATION"], "", **entry.get("OPTIONS", {}))


def flusher(spec: Spec) -> Callable[[], object]:
    location = spec.locks["LOCATION"]
    if "MemoryStore" in spec.locks["BACKEND"]:
        return lambda: MemoryStore("default", location)._table.leases.clear()
    if "DatabaseStore" in spec.locks["BACKEND"]:
        return lambda: empty(location)
    clients = [redis.Redis.from_url(url) for url in ([location] if isinstance(location, str) else location)]
    return lambda: [client.flushall() for client in clients]


@pytest.mark.timeout(1800 if LONG else 120)
@pytest.mark.parametrize("kind", STORES)
def test_any_calls_in_any_order_keep_the_contract(kind: str, spec_of: Any) -> None:
    spec = spec_of(kind)
    machine = type("Machine", (StoreMachine,), {})
    machine.make_store, machine.flush_store = staticmethod(maker(spec)), staticmethod(flusher(spec))
    run_state_machine_as_test(machine, settings=examples(EXAMPLES[kind], 40, kind == "memory", stateful_step_count=30))
