"""The rows that the admin shows: where they are, what each one says, and which service frees its lock."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet, Value
from django.utils.translation import gettext, pgettext
from django.utils.translation import gettext_lazy as _

from django_locks.conf import entries, locks
from django_locks.exceptions import InvalidLockStore
from django_locks.models import InstantField, Lease
from django_locks.service import LocksService
from django_locks.stores.base import BROKEN, FAILED, RELEASED
from django_locks.stores.database import DatabaseStore
from django_locks.text import printable
from django_locks.values import NAME_LENGTH, describe_duration

HELD, COOLING, FREE = "held", "cooling", "free"
STATES = {HELD: _("Held"), COOLING: _("Cooling down"), FREE: _("Free")}
NO_BREAK = "\N{NO-BREAK SPACE}"
MARKS = {HELD: "●", COOLING: "◐", FREE: "○"}


def source() -> DatabaseStore | None:
    """Return the store whose rows are shown: that of the first entry of ``LOCKS`` which keeps them in a database."""
    return next((store for _, store in _database_stores()), None)


def service_of(name: str) -> tuple[LocksService, str] | None:
    """Return a service that can free a stored name, and the name without its prefix.

    Entries that share the table differ in their ``KEY_PREFIX``. ``None``: the row is of none of this project's.
    """
    shown = source()
    for alias, store in _database_stores():
        prefix = entries(alias).prefix
        short = name.removeprefix(prefix)
        if (
            shown
            and store.database_alias == shown.database_alias
            and name.startswith(prefix)
            and len(short) <= NAME_LENGTH
        ):
            return locks.using(alias), short
    return None


def _database_stores() -> Iterator[tuple[str, DatabaseStore]]:
    for alias in entries:
        try:
            store = entries(alias).store
        except InvalidLockStore:
            continue  # the system checks speak of it
        if isinstance(store, DatabaseStore):
            yield alias, store


def rows(store: DatabaseStore, now: datetime) -> QuerySet[Lease]:
    """Return all rows, each with the moment ``now`` at which its state is to be told."""
    return Lease._default_manager.using(store.database_alias).annotate(now=Value(now, output_field=InstantField()))


def in_state(state: str, now: datetime) -> Q:
    """Return the condition for rows in this state."""
    if state == FREE:
        return Q(expires_at__lte=now)
    kept = Q(owner="")
    return Q(expires_at__gt=now) & (kept if state == COOLING else ~kept)


class Row:
    """What one row says."""

    def __init__(self, lease: Any) -> None:
        self.lease = lease
        self.now: datetime = lease.now

    @property
    def name(self) -> str:
        """The lock's name, as it can be shown."""
        return printable(self.lease.name)

    @property
    def holder(self) -> str:
        """The holder, as it can be shown."""
        return printable(self.lease.holder)

    @property
    def state(self) -> str:
        """One of ``STATES``."""
        if self.lease.expires_at <= self.now:
            return FREE
        return HELD if self.lease.owner else COOLING

    @property
    def label(self) -> str:
        """The state, for people."""
        return _unbroken(f"{MARKS[self.state]} {STATES[self.state]}")

    @property
    def live(self) -> bool:
        """Is the name taken?"""
        return self.state != FREE

    @property
    def age(self) -> str | None:
        """For how long it has been held by now, for people."""
        return _between(self.lease.acquired_at, self.now) if self.state == HELD else None

    @property
    def remaining(self) -> str | None:
        """How long the name stays taken unless renewed, for people."""
        return _between(self.now, self.lease.expires_at) if self.live else None

    @property
    def ended_at(self) -> datetime | None:
        """When the last run ended, or ``None`` while it goes on."""
        end: datetime = self.lease.released_at or self.lease.expires_at
        return None if self.state == HELD else end

    @property
    def last_run(self) -> str | None:
        """When the last run ended and how, for people."""
        if self.ended_at is None:
            return None
        parts = {"ago": _between(self.ended_at, self.now), "how": self._outcome()}
        return _unbroken(gettext("%(ago)s ago, %(how)s") % parts)

    @property
    def took(self) -> str | None:
        """How long the last run took, for people."""
        return None if self.ended_at is None else _between(self.lease.acquired_at, self.ended_at)

    def _outcome(self) -> str:
        outcomes = {
            RELEASED: pgettext("end of a lease", "released"),
            FAILED: pgettext("end of a lease", "failed"),
            BROKEN: pgettext("end of a lease", "broken"),
        }
        return outcomes.get(self.lease.outcome, pgettext("end of a lease", "ran out"))


def _between(start: datetime, end: datetime) -> str:
    return _unbroken(describe_duration((end - start).total_seconds()))


def _unbroken(text: str) -> str:
    return text.replace(" ", NO_BREAK)


def key_of(name: str) -> str:
    """Return the name in letters and digits alone.

    The admin's own quoting keeps dots, and ``../change/`` is another page than that of the lock ``..``.
    """
    return base64.b32encode(name.encode()).decode().rstrip("=").lower()


def name_of(key: str) -> str | None:
    """Return the name of a key, or ``None`` if it is none."""
    try:
        name = base64.b32decode(key.upper() + "=" * (-len(key) % 8)).decode()
    except (binascii.Error, ValueError):
        return None
    return name if key_of(name) == key and "\0" not in name else None
