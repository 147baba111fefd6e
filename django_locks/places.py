"""Where the leases of ``LOCKS`` are, as the admin looks at them: a place is a table of a database, or a store without.

Entries that are in one database share its table, and differ in their ``KEY_PREFIX``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.db import Error
from django.db.models import Count, Q, QuerySet

from django_locks import history
from django_locks.conf import entries, locks
from django_locks.exceptions import InvalidLockStore
from django_locks.models import Lease
from django_locks.rows import COOLING, FREE, HELD, LIVE, PAUSED_STATE, Row
from django_locks.service import LocksService
from django_locks.stores.base import BaseStore, Browsed
from django_locks.stores.database import DatabaseStore
from django_locks.stores.sql.faults import MIGRATE, is_table_missing
from django_locks.values import NAME_LENGTH, PAUSED, LeaseInfo

RECENT = 200  # runs that are looked through for the free locks of a store that forgets them


class Wish(NamedTuple):
    """Which locks shall be shown."""

    text: str = ""
    state: str = ""
    prefix: str = ""

    def fits(self, row: Row) -> bool:
        text = self.text.lower()
        return self.state in ("", LIVE, row.state) and (text in row.stored.lower() or text in row.holder.lower())


class Numbers(NamedTuple):
    """How many locks are live, and in which state; ``None`` where telling would mean reading all of them."""

    live: int
    soon: int
    held: int | None = None
    cooling: int | None = None
    paused: int | None = None
    free: int | None = None


class Place:
    """A store that keeps live leases only, asked by its contract. Of free locks it knows what the history does."""

    def __init__(self, alias: str, store: BaseStore) -> None:
        self.alias = alias
        self.aliases = [alias]
        self.store = store

    @property
    def soon(self) -> float:
        """Seconds: a lease that ends so soon has not been renewed when it should have been."""
        return entries(self.alias).ttl / 3

    def numbers(self) -> Numbers:
        """Return how many locks there are."""
        found = self._browsed
        return Numbers(found.total, found.soon)

    def facets(self, wish: Wish) -> Numbers:
        """Return how many of the wished locks are in each state. Reads all of them."""
        rows = [row for row in map(self._row, self.store.leases()) if Wish(wish.text).fits(row)]
        states = [row.state for row in rows]
        soon = sum(row.remaining < self.soon for row in rows)
        held, cooling, paused = map(states.count, (HELD, COOLING, PAUSED_STATE))
        return Numbers(len(rows), soon, held, cooling, paused, len(self._ended(wish)))

    def live(self, wish: Wish, start: int, size: int) -> tuple[int, list[Row]]:
        """Return how many live locks are wished, and those from number ``start`` on."""
        if wish.state == FREE:
            return 0, []
        if wish.text or wish.state not in ("", LIVE):
            found = [row for row in map(self._row, self.store.leases()) if wish.fits(row)]
            return len(found), found[start : start + size]
        page = self.store.browse(start, size, self.soon)
        self._browsed = page
        return page.total, [self._row(lease) for lease in page.leases]

    def free(self, wish: Wish, start: int, size: int) -> list[Row]:
        """Return the wished free locks from number ``start`` on."""
        return self._ended(wish)[start : start + size] if wish.state in ("", FREE) else []

    def free_count(self, wish: Wish) -> int:
        """Return how many free locks are wished."""
        return len(self._ended(wish)) if wish.state in ("", FREE) else 0

    def find(self, stored: str) -> Row | None:
        """Return the lock of a stored name, or ``None`` if nothing is known of it."""
        lease = self.store.get(stored)
        if lease is not None:
            return self._row(lease)
        run = history.runs(self.alias).filter(name=stored).order_by("-fence").first()
        return None if run is None else Row.of_run(run, self.alias)

    def waiters(self, stored: str) -> int | None:
        """Return how many wait for the lock, or ``None`` where processes wait that this one does not know of."""
        return self.store.waiters.count(stored) if self.store.process_local else None

    def service_of(self, stored: str) -> tuple[LocksService, str] | None:
        """Return a service that can free a stored name, and the name without its prefix; ``None``: it is foreign."""
        fitting = [alias for alias in self.aliases if stored.startswith(entries(alias).prefix)]
        if not fitting:
            return None
        alias = max(fitting, key=lambda alias: len(entries(alias).prefix))
        short = stored.removeprefix(entries(alias).prefix)
        return (locks.using(alias), short) if len(short) <= NAME_LENGTH else None

    def _ended(self, wish: Wish) -> list[Row]:
        if entries(self.alias).history is None:
            return []
        last: dict[str, Row] = {}
        for run in history.runs(self.alias)[:RECENT]:
            last.setdefault(run.name, Row.of_run(run, self.alias))
        return [row for row in last.values() if wish.fits(row) and self.store.get(row.stored) is None]

    def _row(self, lease: LeaseInfo) -> Row:
        return Row.of_lease(lease, self.alias, entries(self.alias).ttl)

    @cached_property
    def _browsed(self) -> Browsed:
        return self.store.browse(0, 1, self.soon)


class DatabasePlace(Place):
    """The table of a database, which keeps free locks, too."""

    store: DatabaseStore

    def __init__(self, alias: str, store: DatabaseStore) -> None:
        super().__init__(alias, store)

    @cached_property
    def now(self) -> datetime:
        """The database server's time, read once a request."""
        return self.store.clock()

    def numbers(self) -> Numbers:
        return self._numbers

    @cached_property
    def _numbers(self) -> Numbers:
        return self._count(self._rows.filter(expires_at__gt=self.now))

    def facets(self, wish: Wish) -> Numbers:
        return self._count(self._wished(wish._replace(state="")), free=Count("pk", filter=Q(expires_at__lte=self.now)))

    def live(self, wish: Wish, start: int, size: int) -> tuple[int, list[Row]]:
        if wish.state == FREE:
            return 0, []
        found = self._wished(wish).filter(expires_at__gt=self.now)
        with self._errors():
            known = None if wish.text or wish.prefix else getattr(self._numbers, wish.state or LIVE)
            return found.count() if known is None else known, self._read(found, start, size)

    def free(self, wish: Wish, start: int, size: int) -> list[Row]:
        if wish.state not in ("", FREE):
            return []
        with self._errors():
            return self._read(self._wished(wish).filter(expires_at__lte=self.now), start, size)

    def free_count(self, wish: Wish) -> int:
        with self._errors():
            return self._wished(wish).filter(expires_at__lte=self.now).count()

    def find(self, stored: str) -> Row | None:
        with self._errors():
            return next(iter(self._read(self._rows.filter(name=stored), 0, 1)), None)

    @property
    def _rows(self) -> QuerySet[Lease]:
        _ = self.now  # first, since the store says in better words what is wrong with it
        return Lease._default_manager.using(self.store.database_alias)

    def _wished(self, wish: Wish) -> QuerySet[Lease]:
        found = self._rows
        if wish.prefix:
            found = found.filter(name__startswith=wish.prefix)
        if wish.text:
            found = found.filter(Q(name__icontains=wish.text) | Q(holder__icontains=wish.text))
        if wish.state in OWNERS:
            found = found.filter(OWNERS[wish.state])
        return found

    def _count(self, found: QuerySet[Lease], **more: Any) -> Numbers:
        live = Q(expires_at__gt=self.now)
        soon = live & Q(expires_at__lt=self.now + timedelta(seconds=self.soon)) & OWNERS[HELD]
        states = {state: Count("pk", filter=live & owner) for state, owner in OWNERS.items()}
        with self._errors():
            numbers = found.aggregate(live=Count("pk", filter=live), soon=Count("pk", filter=soon), **states, **more)
        return Numbers(**numbers)

    def _read(self, found: QuerySet[Lease], start: int, size: int) -> list[Row]:
        page = found.order_by("name")[start : start + size]
        return [Row.of_model(lease, self._alias_of(lease.name), self.now, self._ttl(lease.name)) for lease in page]

    def _alias_of(self, stored: str) -> str:
        service = self.service_of(stored)
        return self.alias if service is None else service[0].alias

    def _ttl(self, stored: str) -> float:
        return entries(self._alias_of(stored)).ttl

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Error as error:
            why = MIGRATE.format(self.store.database_alias) if is_table_missing(error) else error
            raise self.store.unavailable("list", "", why) from error


OWNERS = {HELD: ~Q(owner__in=("", PAUSED)), COOLING: Q(owner=""), PAUSED_STATE: Q(owner=PAUSED)}


def places() -> Sequence[Place]:
    """Return the places of all entries of ``LOCKS`` that can be used, in their order."""
    found: dict[tuple[str, object], Place] = {}
    for alias in entries:
        try:
            store = entries(alias).store
        except InvalidLockStore:
            continue  # the system checks speak of it
        if isinstance(store, DatabaseStore):
            place = found.setdefault(("database", store.database_alias), DatabasePlace(alias, store))
        else:
            place = found.setdefault(("store", alias), Place(alias, store))
        if alias not in place.aliases:
            place.aliases.append(alias)
    return list(found.values())


def faults() -> dict[str, str]:
    """Return what is wrong with the entries of ``LOCKS`` that cannot be used, by alias."""
    found = {}
    for alias in entries:
        try:
            entries(alias)
        except InvalidLockStore as error:
            found[alias] = str(error)
    return found


def place_of(alias: str) -> Place | None:
    """Return the place of an entry."""
    return next((place for place in places() if alias in place.aliases), None)


def key_of(alias: str, stored: str) -> str:
    """Return an alias and a stored name in letters and digits alone.

    The admin's own quoting keeps dots, and ``../change/`` is another page than that of the lock ``..``.
    """
    return f"{_encoded(alias)}0{_encoded(stored)}"


def name_of(key: str) -> tuple[str, str] | None:
    """Return the alias and the stored name of a key, or ``None`` if it is none."""
    alias, zero, name = key.partition("0")
    try:
        found = _decoded(alias), _decoded(name)
    except (binascii.Error, ValueError):
        return None
    return found if all(found) and zero and key_of(*found) == key and "\0" not in "".join(found) else None


def _encoded(text: str) -> str:
    return base64.b32encode(text.encode()).decode().rstrip("=").lower()


def _decoded(text: str) -> str:
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8)).decode()
