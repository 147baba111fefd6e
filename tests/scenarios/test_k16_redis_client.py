"""K16: time-outs of the Redis client. (Its decoding: tests/stores/test_redis_options.py.)"""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_locks import locks
from tests.scenarios.actors import held_elsewhere


@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster"])
def test_wait_may_be_longer_than_the_time_out_of_the_client(kind: str, spec_of: Any, settings: Any, name: str) -> None:
    """B065"""
    spec = spec_of(kind)
    options = {**spec.locks.get("OPTIONS", {}), "socket_timeout": 0.4}
    settings.LOCKS = {"default": {**spec.locks, "OPTIONS": options}}
    with held_elsewhere(name, seconds=1.2):
        start = time.monotonic()
        locks.acquire(name, wait=5).release()
        assert 1.0 < time.monotonic() - start < 1.2 + 0.6
