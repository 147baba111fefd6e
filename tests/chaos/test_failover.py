"""Redis whose primary fails over to its replica."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("store", ["sentinel", "cluster"])
def test_disturbed_locks_keep_their_promises(store: str, survives: Callable[[str], None]) -> None:
    survives(store)
