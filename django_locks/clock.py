"""The holder's clock: seconds that never step back and go on while the machine sleeps.

Call it through the module (``clock.now()``), so that a test can put another in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

# CLOCK_MONOTONIC stops in suspend, and a holder would wake up believing in a lease that ended long ago:
# clock_gettime(2).
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

#: Return seconds since some fixed moment.
now: Callable[[], float] = time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)

#: Return the host's time of day in seconds since the epoch: for labels, never to compare with another machine's.
epoch: Callable[[], float] = time.time


def moment(seconds: float) -> datetime:
    """Return what `epoch` has returned as an aware datetime, UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def wall() -> datetime:
    """Return the host's time of day, aware, UTC."""
    return moment(epoch())


sleep = time.sleep
