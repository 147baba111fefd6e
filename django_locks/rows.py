"""What the admin says of one lock, wherever it was found. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils.translation import gettext, pgettext, pgettext_lazy

from django_locks import clock
from django_locks.history import EXPIRED, LOST
from django_locks.stores.base import BROKEN, FAILED, RELEASED, RESUMED
from django_locks.text import printable
from django_locks.values import PAUSED, LeaseInfo, describe_duration

if TYPE_CHECKING:
    from django_locks.models import Lease, Run

HELD, COOLING, PAUSED_STATE, FREE, LIVE = "held", "cooling", "paused", "free", "live"
STATES = {
    HELD: pgettext_lazy("state of a lock", "Held"),
    COOLING: pgettext_lazy("state of a lock", "Cooling down"),
    PAUSED_STATE: pgettext_lazy("state of a lock", "Paused"),
    FREE: pgettext_lazy("state of a lock", "Free"),
}
MARKS = {HELD: "●", COOLING: "◐", PAUSED_STATE: "‖", FREE: "○"}
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Row:
    """A lock: who has it, or who had it last. ``now`` is its store's time, and all moments are by that clock."""

    alias: str
    stored: str
    state: str
    holder: str
    fence: int
    now: datetime
    acquired_at: datetime
    expires_at: datetime
    ttl: float  #: seconds from its last renewal to its end, as far as is known
    renewed_at: datetime | None = None
    ended_at: datetime | None = None  #: when the last run ended, or None while it goes on
    outcome: str = ""
    error: str = ""

    @classmethod
    def of_lease(cls, lease: LeaseInfo, alias: str, ttl: float) -> Row:
        """Return the row of a live lease, as its store tells it. ``ttl`` is what such leases usually have."""
        now = lease.expires_at - timedelta(seconds=lease.remaining)
        return cls(
            alias=alias,
            stored=lease.name,
            state=lease.state,
            holder=lease.holder,
            fence=lease.fence,
            now=now,
            acquired_at=lease.acquired_at,
            expires_at=lease.expires_at,
            ttl=max(ttl, lease.remaining),
        )

    @classmethod
    def of_model(cls, lease: Lease, alias: str, now: datetime, ttl: float) -> Row:
        """Return the row of a row of the table, live or not."""
        state = _state(lease.owner) if lease.expires_at > now else FREE
        renewed = lease.renewed_at
        if renewed is None or renewed < lease.acquired_at or state != HELD:
            renewed = None
        start = renewed or lease.acquired_at
        known = state == HELD and start <= now
        return cls(
            alias=alias,
            stored=lease.name,
            state=state,
            holder=lease.holder,
            fence=lease.fence,
            now=now,
            acquired_at=lease.acquired_at,
            expires_at=lease.expires_at,
            ttl=(lease.expires_at - start).total_seconds() if known else ttl,
            renewed_at=renewed,
            ended_at=None if state in (HELD, PAUSED_STATE) else lease.released_at or lease.expires_at,
            outcome=lease.outcome or ("" if state in (HELD, PAUSED_STATE) else _unsaid(lease.owner)),
        )

    @classmethod
    def of_run(cls, run: Run, alias: str) -> Row:
        """Return the row of a free lock that only the history remembers."""
        now = clock.wall()
        return cls(
            alias=alias,
            stored=run.name,
            state=FREE,
            holder=run.holder,
            fence=run.fence,
            now=now,
            acquired_at=run.started,
            expires_at=run.ended or now,
            ttl=0,
            ended_at=run.ended,
            outcome=run.outcome or EXPIRED,
            error=run.error,
        )

    @property
    def name(self) -> str:
        """The lock's name, as it can be shown."""
        return printable(self.stored)

    @property
    def who(self) -> str:
        """The holder, or the note of a pause, as it can be shown."""
        return printable(self.holder)

    @property
    def live(self) -> bool:
        """Is the name taken?"""
        return self.state != FREE

    @property
    def mark(self) -> str:
        return MARKS[self.state]

    @property
    def label(self) -> str:
        """The state, for people."""
        return str(STATES[self.state])

    @property
    def remaining(self) -> float:
        """Seconds until it is free unless renewed."""
        return max(0.0, (self.expires_at - self.now).total_seconds()) if self.live else 0.0

    @property
    def remaining_ms(self) -> int:
        return int(self.remaining * 1000)

    @property
    def age(self) -> float:
        """Seconds since it was taken."""
        return max(0.0, (self.now - self.acquired_at).total_seconds())

    @property
    def age_ms(self) -> int:
        return int(self.age * 1000)

    @property
    def since_renewal(self) -> float | None:
        """Seconds since its holder renewed it, or ``None`` if it never did or that is not known."""
        return None if self.renewed_at is None else max(0.0, (self.now - self.renewed_at).total_seconds())

    @property
    def is_late(self) -> bool:
        """Has its holder missed a renewal, which it makes at a third of the TTL?"""
        return self.since_renewal is not None and self.since_renewal > self.ttl / 2

    @property
    def ttl_ms(self) -> int:
        return max(1, int(self.ttl * 1000))

    @property
    def age_label(self) -> str:
        return spoken(self.age)

    @property
    def remaining_label(self) -> str:
        return spoken(self.remaining)

    @property
    def renewed_label(self) -> str | None:
        return None if self.since_renewal is None else spoken(self.since_renewal)

    @property
    def ended_label(self) -> str | None:
        """How long ago the last run ended, for people."""
        return None if self.ended_at is None else spoken((self.now - self.ended_at).total_seconds())

    @property
    def took_label(self) -> str | None:
        """How long the last run took, for people."""
        return None if self.ended_at is None else spoken((self.ended_at - self.acquired_at).total_seconds())

    @property
    def outcome_label(self) -> str:
        return outcome_label(self.outcome, self.error)


def _state(owner: str) -> str:
    return {"": COOLING, PAUSED: PAUSED_STATE}.get(owner, HELD)


def _unsaid(owner: str) -> str:
    """Return how a hold of this owner ended that nobody has given back."""
    return RESUMED if owner == PAUSED else EXPIRED


def outcome_label(outcome: str, error: str = "") -> str:
    """Return how a run ended, for people."""
    labels: Mapping[str, str] = {
        "": pgettext("end of a lease", "running"),
        RELEASED: pgettext("end of a lease", "released"),
        FAILED: pgettext("end of a lease", "failed"),
        BROKEN: pgettext("end of a lease", "broken"),
        RESUMED: pgettext("end of a lease", "pause over"),
        LOST: pgettext("end of a lease", "lost"),
        EXPIRED: pgettext("end of a lease", "ran out"),
    }
    label = labels.get(outcome, printable(outcome))
    if error:
        return gettext("%(outcome)s: %(error)s") % {"outcome": label, "error": printable(error)}
    return label


def spoken(seconds: float) -> str:
    """Return a duration for people, which stays in one line."""
    return describe_duration(seconds).replace(" ", NO_BREAK)
