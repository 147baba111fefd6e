"""What somebody else has written into the store: shown as far as it can be, or one documented error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import redis
from django.db import Error, connections
from hypothesis import given
from hypothesis import strategies as st

from django_locks import LockError, conf, locks
from django_locks.models import Lease
from django_locks.stores.redis_wire import Wire
from tests.admin_pages import change_url, client_of, list_url
from tests.cli import end
from tests.conftest import DATABASE
from tests.fuzz.profile import examples
from tests.fuzz.strategies import TEXT

CODES = {0, 1, 2, 69, 75}
BIG = st.integers(-(2**63), 2**63 - 1)
NOW = int(datetime.now(UTC).timestamp() * 1_000_000)
MOMENTS = st.one_of(
    BIG, st.integers(NOW - 10**7, NOW + 10**9), st.sampled_from([0, -1, 2**63 - 1, -(2**63), 2**53, -(2**53)])
)
PLAIN = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
ROWS = st.fixed_dictionaries(
    {
        "name": st.text(PLAIN, max_size=255) | st.sampled_from(["job", "", " ", "\n", "é", "a" * 255]),
        "owner": st.text(PLAIN, max_size=32) | st.just("a" * 32),
        "holder": st.text(PLAIN, max_size=200),
        "fence": BIG | st.integers(0, 10**16),
        "acquired_at": MOMENTS,
        "expires_at": MOMENTS,
        "renewed_at": st.none() | MOMENTS,
        "released_at": st.none() | MOMENTS,
        "outcome": st.text(PLAIN, max_size=16) | st.sampled_from(["released", "failed", "broken"]),
    }
)

CALLS: dict[str, Callable[[str], Any]] = {
    "get": lambda name: locks.get(name),
    "leases": lambda name: [repr(lease) for lease in locks.leases()],
    "try": lambda name: locks.try_acquire(name),
    "adopt": lambda name: locks.adopt(name, "a" * 32),
    "extend": lambda name: locks.force_extend(name, 60),
    "pause": lambda name: locks.pause(name, 60),
    "resume": lambda name: locks.resume(name),
    "break": lambda name: locks.force_release(name),
    "browse": lambda name: conf.entries("default").store.browse(0, 10, 10),
    "prune": lambda name: conf.entries("default").store.prune(0),
}


def use(name: str) -> None:
    """Do everything with a lock, and with all of them."""
    for call in CALLS.values():
        try:
            answer = call(name)
        except (LockError, ValueError) as error:
            assert isinstance(error, LockError) or "lock's name" in str(error), error
        else:
            getattr(answer, "release", bool)()
    for arguments in (["list"], ["list", "--json"], ["show", "--", name]):
        ended = end(*arguments)
        assert ended.code in CODES, ended


@examples(40, shrink=False)
@given(row=ROWS)
def test_row_made_by_hand_is_shown_or_refused(database_store: Any, row: dict[str, Any]) -> None:
    connection = connections[database_store.locks["LOCATION"]]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_locks_lease")
        try:
            cursor.execute(
                f"INSERT INTO django_locks_lease ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
                list(row.values()),
            )
        except Error:  # the database itself does not take it
            return
    use(row["name"])
    for lease in Lease.objects.using(connection.alias):
        assert repr(lease)


@pytest.mark.django_db
@examples(40, shrink=False)
@given(row=ROWS)
def test_pages_show_a_row_made_by_hand(page_of_all: Any, row: dict[str, Any]) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("DELETE FROM django_locks_lease")
        cursor.execute(
            f"INSERT INTO django_locks_lease ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})",
            list(row.values()),
        )
    page_of_all(row["name"])


@pytest.fixture
def page_of_all(settings: Any) -> Any:
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "HISTORY": 3600}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    client = client_of("view_lease", "break_lease", "pause_lease")

    def look(name: str) -> None:
        for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Midway"):
            settings.TIME_ZONE = zone
            assert client.get(list_url(), {"facets": "1"}).status_code == 200
            assert client.get(change_url(name)).status_code in {200, 302, 404}

    return look


VALUES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda *parts: b" ".join(parts),
        st.sampled_from([b"a" * 32, b"", b"paused", b"%zz", b"\xff"]),
        st.integers().map(lambda number: str(number).encode()) | st.binary(max_size=5),
        st.integers().map(lambda number: str(number).encode()) | st.sampled_from([b"", b"1e5", b"9" * 5000]),
        st.binary(max_size=20),
    ),
)
ENDS = st.none() | st.integers(1, 10**6) | st.sampled_from([10**15, 2**61])


@pytest.mark.parametrize("kind", ["redis", "valkey"])
@examples(40, shrink=False)
@given(
    value=VALUES,
    end_in=ENDS,
    name=st.binary(min_size=1, max_size=10) | TEXT.map(lambda text: text.encode("utf-8", "ignore") or b"x"),
    score=st.floats(allow_nan=False) | st.just(9e18),
    sort=st.sampled_from(["string", "string", "string", "list", "fence", "index"]),
)
def test_key_made_by_hand_is_shown_or_refused(
    kind: str, spec_of: Any, settings: Any, value: bytes, end_in: int | None, name: bytes, score: float, sort: str
) -> None:
    spec = spec_of(kind)
    settings.LOCKS = {"default": spec.locks}
    (bucket,) = Wire("", 1).buckets
    with redis.Redis.from_url(spec.locks["LOCATION"]) as client:
        client.flushall()
        client.zadd(bucket.index, {name: score})
        if sort == "list":
            client.rpush(bucket.lease + name, value)
        elif sort == "fence":
            client.set(bucket.fence, value)
        elif sort == "index":
            client.delete(bucket.index)
            client.set(bucket.index, value)
        else:
            client.set(bucket.lease + name, value, px=end_in)
    use(name.decode("utf-8", "replace"))
