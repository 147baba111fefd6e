"""Peers and limits that may be missing here: each is made by a function of its own, or left out with a note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Pair = Callable[[], object]


def available(makers: dict[str, Callable[[], Any]], notes: list[str]) -> dict[str, Any]:
    """Make and try out each contestant; note those that cannot be had."""
    made = {}
    for who, make in makers.items():
        try:
            contestant = make()
            contestant()
        except Exception as error:
            notes.append(f"{who} is left out: {type(error).__name__}: {error}"[:300])
        else:
            made[who] = contestant
    return made
