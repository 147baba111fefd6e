"""Leases and counters in the same database."""

import pytest


@pytest.mark.parametrize("store", ["postgresql", "mariadb", "sqlite"])
def test_disturbed_locks_keep_their_promises(store, survives):
    survives(store)
