"""Any arguments of ``manage.py locks``: a documented exit code, no traceback, nothing changed by a refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_locks import conf
from django_locks.values import PAUSED
from tests.cli import end
from tests.fuzz.profile import examples
from tests.fuzz.strategies import TEXT

#: What docs/command.md promises; 1 is "free", 2 wrong usage.
CODES = {0, 1, 2, 69, 74, 75, 78}

CHANGING = ["release", "extend", "pause", "resume"]
LOOKING = ["list", "show", "wait", "history", "doctor", "prune"]

NAMES = st.sampled_from(["held", "free", "paused", "kept", "-x", "--", "--help", "", " x"])
AMOUNTS = st.sampled_from(["1", "30s", "10m", "0", "-1", "1e3", "nan", "inf", "9" * 13, "2h", "1.5ms", "٣", "1_0", "d"])
# fmt: off
FLAGS = [
    "--json", "--all", "--using", "--prefix", "--ttl", "--for", "--note", "--wait=0", "-w0", "--older-than",
    "--dry-run", "--force", "--yes", "--last", "-n", "-E", "--busy-code", "--limit", "--no-color", "-v", "--unknown",
    "-x", "--js",
]
# fmt: on
OPTIONS = st.sampled_from(FLAGS)
WORDS = st.lists(st.one_of(NAMES, AMOUNTS, OPTIONS, TEXT, st.sampled_from(["default", "other", "3"])), max_size=6)


def fill() -> dict[str, Any]:
    """Return a table with a lease in each state."""
    store = conf.entries("default").store
    leases: dict[str, Any] = store._table.leases  # type: ignore[attr-defined]
    leases.clear()
    for name, owner in (("held", "a" * 32), ("kept", "b" * 32), ("paused", PAUSED)):
        store.acquire(name, owner, 3600, "web-1")
    store.release("kept", "b" * 32, hold_for=3600)
    return leases


def state(leases: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: (lease.owner, lease.fence, lease.expires) for name, lease in leases.items()}


@pytest.mark.django_db
@pytest.mark.usefixtures("two_stores")
@examples(160)
@given(subcommand=st.sampled_from([*LOOKING, *CHANGING]) | TEXT, words=WORDS)
def test_any_arguments_end_in_a_documented_code_and_a_refusal_changes_nothing(
    subcommand: str, words: list[str]
) -> None:
    if subcommand == "wait":
        words = ["--wait=0", *words]  # else for ever
    leases = fill()
    before = state(leases)
    ended = end(subcommand, *words)
    assert ended.code in CODES, ended
    if "--json" in words and ended.code == 0 and not {"-h", "--help"} & set(words):
        json.loads(ended.out)
    if ended.code or subcommand not in CHANGING:
        assert state(leases) == before, (subcommand, words)
    said = ended.out if "usage:" in ended.err else ended.out + ended.err  # argparse repeats what it was told
    for character in said:
        assert character == "\n" or character.isprintable() or character.isspace(), (character, ended)


@pytest.mark.usefixtures("two_stores")
@examples(40)
@given(words=WORDS, command=st.sampled_from([[], ["--"]]))
def test_command_to_run_that_is_missing_is_wrong_usage(words: list[str], command: list[str]) -> None:
    leases = fill()
    before = state(leases)
    ended = end("run", *[word for word in words if word not in ("--", "--help")], *command)
    assert ended.code == 2 or "-h" in words, ended
    assert state(leases) == before
