from __future__ import annotations

import uuid

import pytest

MEMORY = "django_locks.stores.memory.MemoryStore"


@pytest.fixture
def memory_locks(settings):
    """Use a memory store that no other test shares."""
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex}}
