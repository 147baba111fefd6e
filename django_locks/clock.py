"""The holder's clock: seconds that never step back and go on while the machine sleeps.

Call it through the module (``clock.now()``), so that a test can put another in its place.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

# CLOCK_MONOTONIC stops in suspend, and a holder would wake up believing in a lease that ended long ago:
# clock_gettime(2).
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return seconds since some fixed moment."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def wall() -> datetime:
    """Return the host's time of day, aware, UTC: for labels, never to compare with another machine's."""
    return datetime.now(UTC)


sleep = time.sleep
