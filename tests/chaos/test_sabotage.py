"""The harness on a broken product: it must notice."""

import pytest

from .checker import OVERLAP, TAKEOVER
from .conftest import Disturb

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
