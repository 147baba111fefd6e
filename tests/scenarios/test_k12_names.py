"""K12: the name worked out from a call's arguments differs between calls, or is that of everybody."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from django_locks import SKIPPED, locks, with_lock

pytestmark = pytest.mark.usefixtures("memory_locks")


def test_release_uses_the_name_of_the_take_although_the_body_changed_its_argument() -> None:
    """B044"""

    @with_lock("x:{options[a]}:{bar}")
    def work(options: dict[str, int], bar: int) -> list[str]:
        options["a"] = 99
        return [lease.name for lease in locks.leases()]

    assert work({"b": 1, "a": 2}, 2) == ["x:2:2"]
    assert work(bar=2, options={"a": 2, "b": 1}) == ["x:2:2"]
    assert list(locks.leases()) == []


METHODS = """
from django.conf import settings
settings.configure(LOCKS={"default": {"BACKEND": "django_locks.stores.memory.MemoryStore"}})
from django_locks import locks, with_lock

def names():
    return [lease.name for lease in locks.leases()]

class Service:
    @with_lock
    def instance(self):
        return names()

    @classmethod
    @with_lock
    def of_class(cls):
        return names()

    @staticmethod
    @with_lock
    def static():
        return names()

print(Service().instance(), Service().instance(), Service.of_class(), Service.static())
"""


def test_default_name_of_a_method_is_the_same_in_every_process_and_for_every_instance() -> None:
    """B045"""
    told = {
        subprocess.run(
            [sys.executable, "-c", METHODS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    once = "['__main__.Service.{}']"
    assert told == {" ".join(once.format(method) for method in ("instance", "instance", "of_class", "static"))}


@pytest.mark.parametrize(
    ("name", "order_id"),
    [
        ("order:{order_id}", None),
        ("order:{order_id}", ""),
        (lambda order_id: None, 5),
        (lambda order_id: "", 5),
    ],
)
def test_empty_part_of_a_name_is_an_error_before_the_body_and_no_lock(name: Any, order_id: Any) -> None:
    """B048"""
    ran = []

    @with_lock(name=name)
    def work(order_id: Any) -> None:
        ran.append(order_id)

    with pytest.raises(ValueError):
        work(order_id)
    assert ran == []
    assert list(locks.leases()) == []


def test_field_without_a_name_is_an_error_when_decorating() -> None:
    """B048"""
    with pytest.raises(ValueError, match=r"\{\}"):
        with_lock("{}")(lambda order_id: SKIPPED)
