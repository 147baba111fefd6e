from __future__ import annotations

import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from django_locks.values import (
    HOLDER_LENGTH,
    LeaseInfo,
    clean_duration,
    clean_holder,
    clean_name,
    clean_wait,
    default_holder,
    describe_duration,
    describe_lease,
    new_owner,
)


def lease(**fields):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return LeaseInfo(
        **{
            "name": "n",
            "owner": "secret",
            "holder": "web-1",
            "fence": 1,
            "acquired_at": now,
            "expires_at": now + timedelta(seconds=30),
            "remaining": 20.0,
            **fields,
        }
    )


@pytest.mark.parametrize(
    "name",
    ["a", "x" * 200, "🔒" * 200, "a b", "a/b:c?d#e", "..", "{}", "%s", "*", "ünï", "<script>", "\u202eabc"],
)
def test_good_name_is_kept(name):
    assert clean_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " a",
        "a ",
        "a\t",
        "\u00a0a",
        "a\nb",
        "a\x00b",
        "a\x7f",
        "\x85a",
        "\ud800",
        "a\udfffb",
        "x" * 201,
        "🔒" * 201,
    ],
)
def test_bad_name_is_a_value_error(name):
    with pytest.raises(ValueError, match="name"):
        clean_name(name)


@pytest.mark.parametrize("name", [None, 1, b"bytes", ["a"], object()])
def test_name_that_is_no_text_is_a_type_error_that_shows_it(name):
    with pytest.raises(TypeError, match="must be text"):
        clean_name(name)


def test_name_is_normalised_before_it_is_measured():
    assert clean_name("jo\u0308b") == "j\u00f6b"
    assert clean_name("o\u0308" * 200) == "\u00f6" * 200


def test_name_that_is_a_subclass_of_text_becomes_plain_text():
    class Text(str):
        def __str__(self):
            return "something else"

    assert type(clean_name(Text("abc"))) is str
    assert clean_name(Text("abc")) == "abc"


@pytest.mark.parametrize(
    ("value", "seconds"), [(1, 1.0), (0.5, 0.5), (timedelta(minutes=2), 120.0), (315_360_000, 315_360_000.0)]
)
def test_good_duration_is_seconds(value, seconds):
    result = clean_duration(value, "ttl")
    assert (result, type(result)) == (seconds, float)


@pytest.mark.parametrize(
    "value", [0, -5, 0.0, math.nan, math.inf, -math.inf, 315_360_001, 10**12, 10**20, 10**400, -(10**400), timedelta(0)]
)
def test_duration_out_of_range_is_a_value_error_that_shows_it(value):
    with pytest.raises(ValueError, match="ttl must be") as caught:
        clean_duration(value, "ttl")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [None, "30", "2280s", True, False, [30], b"30"])
def test_duration_of_another_type_is_a_type_error_that_shows_it(value):
    with pytest.raises(TypeError, match="ttl must be") as caught:
        clean_duration(value, "ttl")
    assert repr(value) in str(caught.value)


def test_wait_may_be_zero_or_endless():
    assert clean_wait(0) == 0
    assert clean_wait(0.0) == 0
    assert clean_wait(None) == math.inf
    assert clean_wait(timedelta(seconds=3)) == 3


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, 10**10])
def test_wait_out_of_range_is_a_value_error(value):
    with pytest.raises(ValueError, match="wait must be"):
        clean_wait(value)


@pytest.mark.parametrize("value", [True, False, "5"])
def test_wait_of_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="wait must be"):
        clean_wait(value)


def test_owners_are_128_bits_and_never_the_same():
    owners = {new_owner() for _ in range(1000)}
    assert len(owners) == 1000
    assert {len(owner) for owner in owners} == {32}
    assert max(int(owner, 16) for owner in owners) > 2**120


def test_default_holder_names_host_process_and_thread():
    assert default_holder().count(":") >= 2
    assert default_holder().endswith(":MainThread")


def test_holder_loses_what_no_store_can_keep():
    assert clean_holder("a\x00b\nc\ud800") == "a?b?c?"
    assert clean_holder("x" * 500) == "x" * HOLDER_LENGTH
    assert clean_holder("wéb 🔒") == "wéb 🔒"


def test_owner_is_not_in_the_repr_of_a_lease():
    assert "secret" not in repr(lease())
    assert "secret" not in describe_lease(lease())


def test_lease_is_frozen():
    with pytest.raises(AttributeError):
        lease().owner = "me"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (12, "12 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (349200, "4 d 1 h"),
    ],
)
def test_duration_is_told_in_two_units_at_most(seconds, text):
    assert describe_duration(seconds) == text


def test_lease_is_told_by_holder_age_and_rest():
    assert describe_lease(lease()) == "is held by web-1 for 10 s, and free in 20 s unless renewed"
    assert "kept for another 20 s after the run of web-1" in describe_lease(lease(owner=""))
    assert "holder unknown" in describe_lease(None)


def test_stored_identity_does_not_depend_on_the_hash_seed():
    script = "from django_locks.values import clean_name; print(clean_name('tenant-7'))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert seen == {"tenant-7\n"}
