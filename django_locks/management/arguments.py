"""The kinds of argument that ``manage.py locks`` takes."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager

from django_locks.options import LARGEST_LIMIT
from django_locks.values import clean_duration, clean_name, clean_wait

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """Return the seconds of ``90``, ``500ms``, ``30s``, ``10m``, ``2h`` or ``7d``."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", text, re.ASCII)
    if match is None:
        raise ArgumentTypeError(
            f"{text!r} is no duration. Write seconds, or a number and a unit: 90, 500ms, 30s, 10m, 2h, 7d."
        )
    return float(match[1]) * UNITS[match[2] or ""]


def duration(text: str) -> float:
    """Return a duration of more than zero seconds."""
    with _refusals():
        return clean_duration(seconds(text), "the duration")


def wait(text: str) -> float:
    """Return how many seconds to wait."""
    with _refusals():
        return clean_wait(seconds(text), "the wait")


def lock_name(text: str) -> str:
    """Return the name of a lock."""
    with _refusals():
        return clean_name(text)


def limit(text: str) -> int:
    """Return how many may hold a lock at once."""
    if not re.fullmatch("[0-9]{1,4}", text, re.ASCII) or not 1 <= int(text) <= LARGEST_LIMIT:
        raise ArgumentTypeError(f"{text!r} is no limit. Write a number from 1 to {LARGEST_LIMIT}.")
    return int(text)


def count(text: str) -> int:
    """Return a number of lines to print."""
    if not re.fullmatch("[0-9]{1,6}", text, re.ASCII) or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is no number of lines. Write a number from 1 to 999999.")
    return int(text)


def exit_code(text: str) -> int:
    """Return an exit code, 0 to 255."""
    if not re.fullmatch("[0-9]{1,3}", text, re.ASCII) or int(text) > 255:
        raise ArgumentTypeError(f"{text!r} is no exit code. Write a number from 0 to 255.")
    return int(text)


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
