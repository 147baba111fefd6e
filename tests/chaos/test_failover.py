"""Redis whose primary fails over to its replica."""

import pytest


@pytest.mark.parametrize("store", ["sentinel", "cluster"])
def test_disturbed_locks_keep_their_promises(store, survives):
    survives(store)
