"""What is known of a lease, and the cleaning of names and durations. No I/O."""

from __future__ import annotations

import functools
import math
import os
import socket
import threading
import unicodedata
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

NAME_LENGTH = 200
PREFIX_LENGTH = 50
HOLDER_LENGTH = 200
TEMPLATE_LENGTH = 200
LONGEST = 10 * 365 * 24 * 3600  # seconds: ten years, far from the overflow of every store

PAUSED = "paused"  # the owner of a lock that a person has taken out of use: no secret, whoever may can resume it

Seconds = int | float | timedelta


class Secret(str):
    """Text that its ``repr`` does not tell, and so no error page and no report that shows the variables of a frame."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A live lease as its store sees it. Datetimes are aware UTC by the store's clock, ``remaining`` is in seconds.

    ``owner`` is the holder's secret (empty while the name is only kept taken, by ``at_least``): it is left out of the
    ``repr``, and must stay out of logs and pages. Of a paused lock ``holder`` is the note.
    """

    name: str
    owner: str = field(repr=False)
    holder: str
    fence: int
    acquired_at: datetime
    expires_at: datetime
    remaining: float

    @property
    def state(self) -> str:
        """``"held"``; ``"cooling"``: kept taken after a run, by ``at_least``; or ``"paused"`` by a person."""
        return {"": "cooling", PAUSED: "paused"}.get(self.owner, "held")


class Name(str):
    """A name that knows its template: what it was made from, of which there are few where names are many."""

    __slots__ = ("template",)

    template: str

    def __new__(cls, name: str, template: str) -> Name:
        self = super().__new__(cls, name)
        self.template = template
        return self


def template_of(name: str) -> str:
    """Return the template that comes with the name, or ``""``."""
    return name.template if isinstance(name, Name) else ""


def clean_name(name: object) -> str:
    """Return the name as it is stored: NFC text. A `Name` keeps its template.

    Raises TypeError for anything but text; ValueError for a name that is empty, longer than 200 characters, has white
    space at an end, control characters or a lone surrogate. The rule is the same for every store.
    """
    if not isinstance(name, str):
        raise TypeError(f"A lock's name must be text, not {type(name).__name__}: {name!r}.")
    text = _clean_text(str.__str__(name))
    return Name(text, name.template) if isinstance(name, Name) else text


@functools.lru_cache(2000)
def _clean_text(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        text = _clean_unicode(text)
    if not text:
        raise ValueError("A lock's name must not be empty.")
    if len(text) > NAME_LENGTH:
        raise ValueError(f"A lock's name may have {NAME_LENGTH} characters, this one has {len(text)}: {text[:40]!r}…")
    if text[0].isspace() or text[-1].isspace():
        raise ValueError(f"A lock's name must not begin or end with white space: {text!r}.")
    return text


def _clean_unicode(text: str) -> str:
    for character in text:
        category = unicodedata.category(character)
        if category == "Cc":
            raise ValueError(f"A lock's name must not contain control characters: {text[:NAME_LENGTH]!r}.")
        if category == "Cs":
            raise ValueError(
                f"A lock's name must not contain lone surrogates, which no store can keep: {text[:NAME_LENGTH]!r}."
            )
    return unicodedata.normalize("NFC", text)


def clean_duration(value: object, what: str) -> float:
    """Return a duration in seconds, more than zero and at most ten years.

    Raises TypeError for anything but int, float or timedelta (bool and text too), ValueError for a value out of range,
    NaN or infinity. ``what`` names the duration in the message.
    """
    seconds = _seconds(value, what)
    if not 0 < seconds <= LONGEST:
        raise ValueError(f"{what} must be more than 0 seconds and at most ten years, not {value!r}.")
    return seconds


def clean_wait(value: object, what: str = "wait") -> float:
    """Return seconds to wait: 0 is fine, ``None`` (for ever) becomes infinity. Raises as `clean_duration`."""
    if value is None:
        return math.inf
    seconds = _seconds(value, what)
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"{what} must be 0 to ten years in seconds, or None to wait for ever, not {value!r}.")
    return seconds


def _seconds(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be seconds (int, float) or a timedelta, not {value!r}.")
    if isinstance(value, int):
        return float(min(max(value, -1), LONGEST + 1))  # float() of a huge int would overflow
    return float(value)


def new_owner() -> str:
    """Return a new secret of 128 random bits, which proves one grant."""
    return Secret(os.urandom(16).hex())


def default_holder() -> str:
    """Return the label ``host:pid:thread`` of the caller."""
    return _process_label() + threading.current_thread().name


@functools.cache
def _process_label() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process_label.cache_clear)


def clean_holder(label: str) -> str:
    """Return the label as every store can keep it: at most 200 characters, none of them a control character."""
    if not (label.isascii() and label.isprintable()):
        label = "".join(c if unicodedata.category(c) not in {"Cc", "Cs"} else "?" for c in label)
    return label[:HOLDER_LENGTH]


def describe_duration(seconds: float) -> str:
    """Return a duration for people: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``4 d 1 h``."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    for unit, size, lesser, lesser_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // lesser_size
            return f"{whole // size} {unit}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"


def describe_lease(lease: LeaseInfo | None) -> str:
    """Return who holds a lock, since when and until when, as the rest of a sentence that began with its name."""
    if lease is None:
        return "was held by somebody who is gone by now (holder unknown)"
    age = describe_duration((lease.expires_at - lease.acquired_at).total_seconds() - lease.remaining)
    left = describe_duration(lease.remaining)
    if lease.state == "paused":
        return f"is paused for another {left}, since {age}: {lease.holder}"
    if lease.state == "cooling":
        return f"is kept for another {left} after the run of {lease.holder} (at_least), begun {age} ago"
    return f"is held by {lease.holder} for {age}, and free in {left} unless renewed"


def unprefixed(lease: LeaseInfo | None, prefix: str) -> LeaseInfo | None:
    """Return the lease under the name that its holder wrote, without ``KEY_PREFIX``."""
    if lease is None or not prefix:
        return lease
    return replace(lease, name=lease.name.removeprefix(prefix))
