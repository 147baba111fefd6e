"""What an examination of a store has found."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Level = Literal["ok", "warn", "fail"]
OK: Level = "ok"
WARN: Level = "warn"
FAIL: Level = "fail"


class Finding(NamedTuple):
    """One finding. ``topic`` is a stable word for programs, ``text`` and ``hint`` are for people."""

    level: Level
    topic: str
    text: str
    hint: str = ""  #: what to do about it
    value: Any = None  #: what was measured or read, fit for JSON
