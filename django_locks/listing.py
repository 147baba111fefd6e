"""The page of locks over all places: which rows are on it, and the numbers above them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import Error

from django_locks import history
from django_locks.conf import entries
from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.places import DatabasePlace, Numbers, Place, Wish, faults, places
from django_locks.rows import LIVE, STATES, Row
from django_locks.text import printable

T = TypeVar("T")

SIZE = 100


@dataclass
class Listing:
    """A page of locks, the live ones first."""

    wish: Wish
    alias: str
    page: int
    rows: list[Row] = field(default_factory=list)
    has_next: bool = False
    live: int = 0
    soon: int = 0
    stores: dict[str, str] = field(default_factory=dict)  #: by alias, what is wrong with it, or nothing
    local: list[str] = field(default_factory=list)  #: the stores of this process only
    facets: Mapping[str, int] | None = None
    day: history.Day | None = None
    waiters: Mapping[str, int] = field(default_factory=dict)

    @property
    def reachable(self) -> int:
        return sum(not fault for fault in self.stores.values())

    @property
    def faults(self) -> dict[str, str]:
        return {alias: fault for alias, fault in self.stores.items() if fault}


def listing(wish: Wish, alias: str = "", page: int = 1, facets: bool = False) -> Listing:
    """Return the page of the wished locks: of one entry of ``LOCKS``, or of all."""
    found = Listing(wish, alias, page, stores={key: printable(fault) for key, fault in faults().items()})
    usable = [place for place in places() if _asked(found, place, _count, found, place)]
    chosen = [place for place in usable if alias in ("", *place.aliases)]
    _fill(found, chosen)
    if facets:
        found.facets = _facets(found, chosen)
    found.stores = {key: found.stores.get(key, "") for key in entries}
    found.day = _day()
    return found


def _asked(found: Listing, place: Place, ask: Callable[..., T], *arguments: Any) -> T | None:
    """Ask the place, or take note of why it cannot be asked."""
    try:
        return ask(*arguments)
    except (StoreUnavailable, InvalidLockStore) as error:
        found.stores.update(dict.fromkeys(place.aliases, printable(str(error))))
        return None


def _count(found: Listing, place: Place) -> bool:
    numbers = place.numbers()
    found.live += numbers.live
    found.soon += numbers.soon
    if place.store.process_local:
        found.local += place.aliases
    return True


def _fill(found: Listing, chosen: Sequence[Place]) -> None:
    start, missing = (found.page - 1) * SIZE, SIZE + 1
    rows: list[Row] = []
    for place in chosen:
        wish = _of_entry(found, place)
        count, live = _asked(found, place, place.live, wish, start, missing - len(rows)) or (0, [])
        rows += live
        start = max(0, start - count)
    for place in chosen:
        wish = _of_entry(found, place)
        free = _asked(found, place, place.free, wish, start, missing - len(rows)) or []
        skipped = start if free or not start else _asked(found, place, place.free_count, wish) or 0
        rows += free
        start = max(0, start - skipped)
    found.rows, found.has_next = rows[:SIZE], len(rows) > SIZE
    found.waiters = _waiters(found.rows, chosen)


def _waiters(rows: Sequence[Row], chosen: Sequence[Place]) -> dict[str, int]:
    by_alias = {alias: place for place in chosen for alias in place.aliases if place.store.process_local}
    counts = {row.stored: by_alias[row.alias].waiters(row.stored) or 0 for row in rows if row.alias in by_alias}
    return {stored: count for stored, count in counts.items() if count}


def _of_entry(found: Listing, place: Place) -> Wish:
    """Return the wish for a place, of whose entries perhaps one alone is wished."""
    if isinstance(place, DatabasePlace) and found.alias and len(place.aliases) > 1:
        return found.wish._replace(prefix=entries(found.alias).prefix)
    return found.wish


def _facets(found: Listing, chosen: Sequence[Place]) -> dict[str, int]:
    numbers: list[Numbers] = []
    for place in chosen:
        wish = _of_entry(found, place)._replace(state="")
        counted = _asked(found, place, place.facets, wish)
        if counted is not None:
            numbers.append(counted)
    return {state: sum(getattr(each, state) or 0 for each in numbers) for state in (LIVE, *STATES)}


def _day() -> history.Day | None:
    try:
        return history.last_day()
    except Error:  # its tables are not there yet, which the system says elsewhere
        return None
