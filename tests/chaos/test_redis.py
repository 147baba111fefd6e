"""One server of Redis, which remembers, and one of Valkey, which does not."""

import pytest


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_disturbed_locks_keep_their_promises(store, survives):
    survives(store)
