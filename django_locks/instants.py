"""Moments as the stores count them: whole microseconds since the epoch, exact in both directions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the moment as an aware datetime in UTC."""
    return EPOCH + timedelta(microseconds=micros)


def to_micros(moment: datetime) -> int:
    """Return the microseconds since the epoch of an aware datetime."""
    return (moment - EPOCH) // MICROSECOND  # not timestamp(): a float has not enough digits
