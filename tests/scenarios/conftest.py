from __future__ import annotations

import uuid
from typing import Any

import pytest

from django_locks import LocksService, locks
from tests.crew import Spec

DATABASES = ["sqlite", "postgresql", "mariadb"]


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
    spec: Spec = spec_of(request.param)
    settings.LOCKS = {"default": spec.locks}
    return spec
