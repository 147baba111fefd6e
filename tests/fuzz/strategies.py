"""What people, programs and attackers hand over."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from django_locks.values import LONGEST
from tests.stores.redis_site import NAMES as STRANGE

#: Any code point at all: control characters and lone surrogates, too.
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=260)

HOSTILE = st.sampled_from(
    [
        *STRANGE,
        "'; DROP TABLE django_locks_lease; --",
        '" OR ""="',
        "%s %(name)s %% {} {0.__class__}",
        "\0",
        "a\r\nSET x 1",
        "]] return redis.call('FLUSHALL') --[[",
        "<script>alert(1)</script>",
        "javascript:alert(1)",
        "//evil.example/",
        "../../etc/passwd",
        "\u202eexe.gpj",
        "\x1b]0;title\x07",
        "e\u0301" * 150,
        "\ufeff",
        "a" * 201,
        " a",
        "a\u2003",
        "\u0345",
        "ﷺ" * 200,
    ]
)
TEXT = st.one_of(ANY_TEXT, HOSTILE, st.text(max_size=20))

NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -0.0, 5e-324, 1e-9, 315_360_000, 315_360_001, 10**12, 10**400, -(10**400), math.inf, math.nan]),
    st.timedeltas(),
)

#: What is a duration.
DURATIONS = st.one_of(
    st.integers(1, LONGEST),
    st.floats(0, LONGEST, exclude_min=True),
    st.timedeltas(timedelta(microseconds=1), timedelta(seconds=LONGEST)),
    st.sampled_from([5e-324, 1e-9, 0.0005, 0.9999, 1.0005, LONGEST, float(LONGEST)]),
)

#: What is neither text nor a number.
THINGS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.binary(max_size=20),
    st.complex_numbers(),
    st.decimals(allow_nan=False),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.sampled_from([object(), object, len, Decimal(1), datetime(2026, 1, 1, tzinfo=UTC), timedelta, ..., {1}, ()]),
)
ANYTHING = st.one_of(TEXT, NUMBERS, THINGS)
