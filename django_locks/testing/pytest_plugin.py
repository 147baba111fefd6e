"""The pytest plugin: found by its entry point, and imports nothing of Django before a test asks for a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def memory_locks() -> Iterator[None]:
    """Keep all locks in memory, of this test's own."""
    from django_locks.testing import override_locks

    with override_locks():
        yield
