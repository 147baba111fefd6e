"""How many examples hypothesis tries: so many, the same ones each time; with LONG=1 many more, and new ones."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

LONG = os.environ.get("LONG") == "1"


def examples(count: int, times: int = 20, shrink: bool = True, **changes: int) -> settings:
    """Return settings for so many examples, and for ``times`` as many with LONG=1.

    ``shrink``: look for the shortest one that fails, which takes minutes where servers are asked.
    """
    return settings(
        max_examples=count * times if LONG else count,
        deadline=None,  # two busy cores
        derandomize=not LONG,
        database=None,
        print_blob=True,
        phases=list(Phase) if shrink or LONG else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        **changes,
    )
