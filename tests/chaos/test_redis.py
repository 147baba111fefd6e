"""One server of Redis, which remembers, or of Valkey, which does not; and a broken product, which must be noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from .checker import OVERLAP, TAKEOVER
from .conftest import Disturb


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_disturbed_locks_keep_their_promises(store: str, survives: Callable[[str], None]) -> None:
    survives(store)


#: What was broken, the faults that show it, and how it shows.
SABOTAGES = {
    "owner": ({"cut some replies"}, {OVERLAP, TAKEOVER}),
    "deadline": ({"stop workers"}, {OVERLAP}),
    "release": ({"step clocks"}, {OVERLAP}),
}


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_broken_product_is_found_out(sabotage: str, disturb: Disturb) -> None:
    faults, rules = SABOTAGES[sabotage]
    result = disturb("redis", seconds=60, sabotage=sabotage, only=frozenset(faults), until_found=True)
    assert {finding.rule for finding in result.verdict.violations} & rules
    shutil.rmtree(result.histories)  # nobody has to look for the cause
