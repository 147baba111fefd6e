from __future__ import annotations

import uuid
from typing import Any

import pytest

from django_locks import LocksService, locks
from tests.conftest import STORES
from tests.crew import Spec
from tests.scenarios.actors import LONG

DATABASES = ["sqlite", "postgresql", "mariadb"]
#: One server of each kind, and all of them with LONG=1: the contract suite runs on all of them every time.
ANY = STORES if LONG else ["memory", "valkey", "sqlite", "postgresql"]


@pytest.fixture
def name() -> str:
    """A lock's name that no other test has."""
    return f"scenario:{uuid.uuid4().hex}"


@pytest.fixture
def second(settings: Any) -> LocksService:
    """The same leases through a store object of its own, as another machine has it. Ask for it after the store."""
    settings.LOCKS = {**settings.LOCKS, "second": settings.LOCKS["default"]}
    return locks.using("second")


@pytest.fixture(params=DATABASES)
def database_store(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use each database in turn."""
    return _used(request, spec_of, settings)


@pytest.fixture(params=ANY)
def any_store(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use a store of each kind in turn."""
    return _used(request, spec_of, settings)


@pytest.fixture(params=[kind for kind in ANY if kind != "memory"])
def shared_store(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use a store of each kind in turn that processes share."""
    return _used(request, spec_of, settings)


@pytest.fixture(params=STORES)
def every_store(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    """Let ``locks`` use each store in turn, every time."""
    return _used(request, spec_of, settings)


def _used(request: pytest.FixtureRequest, spec_of: Any, settings: Any) -> Spec:
    spec: Spec = spec_of(request.param)
    settings.LOCKS = {"default": spec.locks}
    return spec
