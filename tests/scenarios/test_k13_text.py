"""K13: the store compares or keeps names differently from the program."""

from __future__ import annotations

import pytest

from django_locks import locks
from django_locks.testing import STRANGE_NAMES

pytestmark = pytest.mark.usefixtures("every_store")


@pytest.mark.parametrize("character", ["n", "\U0001f512"])
def test_names_up_to_the_limit_work_and_longer_ones_are_one_value_error(character: str) -> None:
    """B049"""
    for length in (64, 65, 191, 200):
        name = character * length
        with locks.lock(name):
            assert [lease.name for lease in locks.leases(character * 60)] == [name]
            assert locks.try_acquire(name) is None
        assert locks.get(name) is None
    for length in (201, 255, 256, 1000):
        with pytest.raises(ValueError, match=f"200 characters, this one has {length}"):
            locks.try_acquire(character * length)


def test_names_that_differ_by_case_or_accent_are_different(name: str) -> None:
    """B050"""
    names = [f"{name}:{tail}" for tail in ("job", "JOB", "jöb")]
    guards = [locks.acquire(each) for each in names]
    for number, guard in enumerate(guards):
        assert sorted(lease.name for lease in locks.leases(f"{name}:")) == sorted(names[number:])
        assert guard.release() is True


def test_name_is_data_or_refused_and_alike_on_every_store(name: str) -> None:
    """B053"""
    for tail in [*STRANGE_NAMES, "{}", "%s", "*", ":", " inside ."]:
        each = f"{name}{tail}"
        with locks.lock(each) as guard:
            assert locks.get(each).owner == guard.owner
            assert [lease.name for lease in locks.leases(each)] == [each]
            assert locks.try_acquire(each) is None
        assert locks.get(each) is None
    for bad in ("", " ", "a ", " a", "a\tb", "a\nb", "a\0b", "a\ud800b", "\x7f"):
        with pytest.raises(ValueError):
            locks.try_acquire(bad)
        with pytest.raises(ValueError):
            locks.get(bad)
