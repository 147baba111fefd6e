"""Leases and counters in the same database."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("store", ["postgresql", "mariadb", "sqlite"])
def test_disturbed_locks_keep_their_promises(store: str, survives: Callable[[str], None]) -> None:
    survives(store)
