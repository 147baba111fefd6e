"""Moments as the stores count them: whole microseconds since the epoch, exact in both directions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAYS = timedelta(days=2)  # so that the first and the last moment are on the calendar in every time zone


def from_micros(micros: int) -> datetime:
    """Return the moment as an aware datetime in UTC; one that is on no calendar as the first or the last that is."""
    return EPOCH + timedelta(microseconds=on_calendar(micros))


def on_calendar(micros: int) -> int:
    """Return the microseconds, or those of the first or the last moment that a datetime can have.

    Only what was written by hand, or by something else, is that far away.
    """
    return min(max(micros, FIRST), LAST)


def to_micros(moment: datetime) -> int:
    """Return the microseconds since the epoch of an aware datetime."""
    return (moment - EPOCH) // MICROSECOND  # not timestamp(): a float has not enough digits


FIRST = to_micros(datetime.min.replace(tzinfo=UTC) + DAYS)
LAST = to_micros(datetime.max.replace(tzinfo=UTC) - DAYS)
