"""Fairness between those who wait for a name in several processes, without a queue on the server.

A release wakes all of them, in an order that is always the same, and whoever gave the name back could take it again
before any of them is awake. So whoever gives it back lets the others go first, and they ask within half a millisecond
of each other, whoever has lost most often first. None of it without rivals: a single waiter loses no time.
"""

from __future__ import annotations

import time

from django_locks import chance

COURTESY = 0.01  # seconds that whoever gave a name back leaves to the others
SPREAD = 0.0005  # seconds over which rivals ask
REMEMBERED = 1.0  # seconds since they were last seen
MOST_NAMES = 1000


class Rivals:
    """The names that others are known to wait for, too, and when this process gave them back."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._given_back: dict[str, float] = {}

    def note(self, name: str) -> None:
        """Take note that somebody else was granted the name that was waited for here."""
        if len(self._seen) >= MOST_NAMES:
            self._seen.clear()
            self._given_back.clear()
        self._seen[name] = time.monotonic()

    def note_release(self, name: str) -> None:
        """Take note that this process gave the name back, and that others wait for it."""
        self.note(name)
        self._given_back[name] = time.monotonic()

    def courtesy(self, name: str) -> float:
        """Return how many seconds to leave to the others before a first try."""
        given_back = self._given_back.get(name) if self._given_back else None
        return 0.0 if given_back is None else max(0.0, given_back + COURTESY - time.monotonic())

    def lag(self, name: str, lost: int) -> float:
        """Return how many seconds to wait after a release, for one who has been too late so many times."""
        seen = self._seen.get(name) if self._seen else None
        if seen is None or time.monotonic() - seen > REMEMBERED:
            return 0.0
        return chance.uniform(0.0, SPREAD) / (1 + lost)
