"""The contract suite over every store, on real servers."""

from __future__ import annotations

import importlib
import pkgutil
import unittest
from typing import Any

import pytest
from django.utils.module_loading import import_string

from django_locks import stores
from django_locks.stores.base import BaseStore
from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql import generic
from django_locks.testing import AsyncStoreContract, StoreContract
from tests.conftest import BACKENDS
from tests.crew import Spec


class OnServer(StoreContract, AsyncStoreContract):
    """The suite on a store of `tests.conftest`."""

    kind = ""
    options: dict[str, Any] = {}
    key_prefix = ""

    @pytest.fixture(autouse=True)
    def _spec(self, spec_of: Any) -> None:
        self.spec: Spec = spec_of(self.kind)

    def make_store(self) -> BaseStore:
        entry = self.spec.locks
        options = {**entry.get("OPTIONS", {}), **self.options}
        store: BaseStore = import_string(entry["BACKEND"])("default", entry["LOCATION"], self.key_prefix, **options)
        return store


class MemoryTests(OnServer, unittest.TestCase):
    kind = "memory"


class RedisTests(OnServer, unittest.TestCase):
    kind = "redis"


class DecodingRedisTests(OnServer, unittest.TestCase):
    kind = "redis"
    options = {"decode_responses": True, "encoding": "latin-1"}
    key_prefix = "contract"


class ValkeyTests(OnServer, unittest.TestCase):
    kind = "valkey"


class ClusterTests(OnServer, unittest.TestCase):
    kind = "cluster"


class SQLiteTests(OnServer, unittest.TestCase):
    kind = "sqlite"


class PostgreSQLTests(OnServer, unittest.TestCase):
    kind = "postgresql"


class NotifyingPostgreSQLTests(OnServer, unittest.TestCase):
    kind = "postgresql"
    options = {"notify": True}


class MariaDBTests(OnServer, unittest.TestCase):
    kind = "mariadb"


class OtherVendorStore(DatabaseStore):
    def _sql(self, connection: Any) -> Any:
        return generic.GenericStatements(connection)


class OtherVendor(OnServer):
    """A database that has no statements of its own."""

    def make_store(self) -> BaseStore:
        return OtherVendorStore("default", self.spec.locks["LOCATION"])


class OtherVendorOnSQLiteTests(OtherVendor, unittest.TestCase):
    kind = "sqlite"


class OtherVendorOnPostgreSQLTests(OtherVendor, unittest.TestCase):
    kind = "postgresql"


class OtherVendorOnMariaDBTests(OtherVendor, unittest.TestCase):
    kind = "mariadb"


def test_every_store_of_the_package_has_a_suite() -> None:
    suites = [suite for suite in globals().values() if isinstance(suite, type) and issubclass(suite, OnServer)]
    tested = {BACKENDS[suite.kind] for suite in suites if issubclass(suite, unittest.TestCase)}
    assert tested == _shipped_stores()


def _shipped_stores() -> set[str]:
    shipped = set()
    for module in pkgutil.walk_packages(stores.__path__, f"{stores.__name__}."):
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, type) and issubclass(found, BaseStore) and found.acquire is not BaseStore.acquire:
                shipped.add(f"{found.__module__}.{found.__name__}")
    return shipped
