"""The checker on histories made by hand: a sound one, and one for each way to break a rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from .checker import FENCE, KEPT, LOST_UPDATE, OVERLAP, REFUSAL, REVIVAL, TAKEOVER, TROUBLE, check
from .history import FAILED, FORCE, KILL, Belief, Call, Fault, History, Recorder, Row, Write, read

TTL = 1.0


def acquire(owner: str, begin: float, answer: Any, end: float | None = None) -> Call:
    return Call("acquire", "x", owner, begin, end or begin + 0.01, answer, ttl=TTL)


def renew(owner: str, begin: float, answer: Any) -> Call:
    return Call("renew", "x", owner, begin, begin + 0.01, answer, ttl=TTL)


def release(owner: str, begin: float, answer: Any, hold_for: float = 0.0) -> Call:
    return Call("release", "x", owner, begin, begin + 0.01, answer, hold_for)


def belief(owner: str, since: float, until: float, lost: float = math.inf) -> Belief:
    return Belief("x", owner, 0, since, until, lost)


def broken(*events: Any, **facts: Any) -> list[str]:
    """Return the rules that the history breaks."""
    history = History(**facts)
    for event in events:
        kinds = {Call: history.calls, Belief: history.beliefs, Fault: history.faults, Write: history.writes}
        {**kinds, Row: history.rows}[type(event)].append(event)
    return [finding.rule for finding in check(history, TTL).violations]


SOUND = [
    acquire("a", 0, 10),
    belief("a", 0.01, 2.5),
    acquire("b", 1, None),
    renew("a", 1, True),
    release("a", 2.5, True),
    acquire("b", 2.6, 11),
    belief("b", 2.62, 3),
    renew("a", 2.7, False),
    Write("1", "x", 10, "ok"),
    Write("2", "x", 11, "ok"),
    Write("3", "x", 11, "failed"),
    Write("4", "x", 11, "unknown"),
    Row("1", "x", 1, 10),
    Row("2", "x", 2, 11),
]


def test_sound_history_breaks_no_rule():
    assert broken(*SOUND, counters={"x": 2}) == []


# Beliefs


def test_two_who_hold_at_once():
    assert broken(belief("a", 0, 2), belief("b", 1, 1.5)) == [OVERLAP]
    assert broken(belief("a", 0, 5), belief("b", 1, 2), belief("c", 3, 4)) == [OVERLAP, OVERLAP]


def test_two_who_hold_one_after_the_other_or_another_name():
    assert broken(belief("a", 0, 1), belief("b", 1, 2)) == []
    assert broken(belief("a", 0, 2), Belief("y", "b", 0, 1, 3)) == []


def test_lost_guard_that_is_held_again():
    assert broken(belief("a", 0, 2, lost=1)) == [REVIVAL]
    assert broken(belief("a", 0, 1, lost=2)) == []


# Fences and takeovers


def test_fence_that_falls():
    assert broken(acquire("a", 0, 10), acquire("b", 2, 9)) == [FENCE]
    assert broken(acquire("a", 0, 10), acquire("b", 0.001, 9)) == []  # at the same time: either may have been first


def test_fence_that_is_granted_twice():
    assert broken(acquire("a", 0, 10), acquire("b", 0.001, 10)) == [FENCE]
    assert broken(acquire("a", 0, 10), acquire("a", 0.5, 10)) == []  # asked again by the same owner


def test_renewal_after_a_takeover():
    taken_over = [acquire("a", 0, 10), acquire("b", 2, 11)]
    assert broken(*taken_over, renew("a", 2.5, True)) == [TAKEOVER]
    assert broken(*taken_over, renew("a", 1.9, True)) == []
    assert broken(*taken_over, renew("b", 2.5, True)) == []


# Liveness


def test_name_that_nobody_holds_is_refused():
    assert broken(acquire("b", 0, None)) == [REFUSAL]
    assert broken(acquire("a", 0, 10), acquire("b", 1.2, None)) == [REFUSAL]
    assert broken(acquire("a", 0, 10), release("a", 0.5, True), acquire("b", 0.7, None)) == [REFUSAL]


def test_name_that_somebody_may_hold_is_refused():
    assert broken(acquire("a", 0, 10), acquire("b", 1, None)) == []
    assert broken(acquire("a", 0, 10), renew("a", 0.9, True), acquire("b", 1.8, None)) == []
    assert broken(acquire("a", 0, 10), release("a", 0.5, False), acquire("b", 0.7, None)) == []
    assert broken(acquire("a", 0, FAILED), acquire("b", 0.7, None)) == []


def test_name_that_is_kept_is_refused():
    kept = [acquire("a", 0, 10), release("a", 0.5, True, hold_for=2)]
    assert broken(*kept, acquire("b", 2, None)) == []
    assert broken(*kept, acquire("b", 2.7, None)) == [REFUSAL]


def test_name_that_is_kept_is_granted():
    kept = [acquire("a", 0, 10), release("a", 0.5, True, hold_for=2)]
    assert broken(*kept, acquire("b", 2, 11)) == [KEPT]
    assert broken(*kept, acquire("b", 2.48, 11)) == []
    assert broken(acquire("a", 0, 10), release("a", 0.5, False, hold_for=2), acquire("b", 2, 11)) == []
    assert broken(*kept, acquire("b", 0.7, 11), Fault("flush", 0.6, 0.65)) == []
    assert broken(*kept, acquire("b", 0.7, 11, end=0.9), Fault("flush", 0.8, 1)) == []
    assert broken(*kept, acquire("b", 0.7, 11, end=0.9), Fault("flush", 1, 1.1)) == [KEPT]


def test_holder_whose_lease_was_taken_by_force_may_believe_in_it_until_a_ttl_later():
    force = Fault(FORCE, 1, 1.01, ["0-0"])
    assert broken(belief("a", 0, 1.6), belief("b", 1.1, 2), force) == []
    assert broken(belief("a", 0, 3), belief("b", 1.1, 3), force) == [OVERLAP]


def test_what_was_left_behind():
    assert broken(troubles=["a lease was left behind"]) == [TROUBLE]


# Fenced writes


@pytest.mark.parametrize(
    ("writes", "rows", "total"),
    [
        ([Write("1", "x", 1, "ok")], [], 0),  # committed, and gone
        ([Write("1", "x", 1, "failed")], [Row("1", "x", 1, 1)], 1),  # said to be rolled back, and committed
        ([], [Row("1", "x", 1, 1), Row("2", "x", 1, 2)], 1),  # both from the same state
        ([], [Row("1", "x", 1, 1)], 0),  # overwritten by who knew an earlier state
        ([], [Row("1", "x", 1, 2), Row("2", "x", 2, 1)], 2),  # by a holder who had been overtaken
    ],
)
def test_lost_update(writes, rows, total):
    assert broken(*writes, *rows, counters={"x": total}) == [LOST_UPDATE]


def test_update_whose_commit_nobody_knows_of():
    assert broken(Write("1", "x", 1, "unknown"), counters={"x": 0}) == []
    assert broken(Write("1", "x", 1, "unknown"), Row("1", "x", 1, 1), counters={"x": 1}) == []


# What is outside of a promise


def test_store_that_was_made_to_forget_may_have_two_holders_for_a_ttl():
    flush = Fault("flush", 1, 1.1)
    assert broken(belief("a", 0, 1.8), belief("b", 1.2, 2), flush) == []
    assert broken(belief("a", 0, 3), belief("b", 1.2, 3), flush) == [OVERLAP]
    assert broken(belief("a", 0, 1.8), belief("b", 0.9, 2), flush) == [OVERLAP]
    assert broken(belief("a", 0, 1.8), belief("b", 1.2, 2), Fault("restart", 1, 1.1)) == [OVERLAP]


@pytest.mark.parametrize("kind", ["flush", "delete rows", "restart empty", "fail over"])
def test_no_fault_excuses_a_fence_that_falls_or_a_lost_update(kind):
    fault = Fault(kind, 0, 5)
    assert broken(acquire("a", 1, 10), acquire("b", 2, 9), fault) == [FENCE]
    assert broken(Row("1", "x", 1, 1), fault, counters={"x": 0}) == [LOST_UPDATE]


# Reading


def test_call_of_a_killed_worker_may_have_happened_until_then(tmp_path):
    worker = Recorder(tmp_path / "0-0.jsonl")
    worker.call(verb="acquire", name="x", owner="a", ttl=TTL)
    conductor = Recorder(tmp_path / "conductor.jsonl")
    conductor.write("fault", fault=KILL, begin=math.floor(_begin(tmp_path)) + 2, workers=["0-0"])
    [call] = read(tmp_path).calls
    assert (call.answer, call.end) == (FAILED, math.floor(call.begin) + 2)


def test_failed_call_may_have_happened_until_the_server_was_healed(tmp_path):
    worker = Recorder(tmp_path / "0-0.jsonl")
    worker.answer(worker.call(verb="acquire", name="x", owner="a", ttl=TTL), FAILED)
    begin = _begin(tmp_path)
    conductor = Recorder(tmp_path / "conductor.jsonl")
    conductor.write("fault", at=begin + 5, fault="hang", begin=begin - 1, workers=[])
    conductor.write("fault", at=begin + 9, fault="hang", begin=begin + 6, workers=[])
    [call] = read(tmp_path).calls
    assert call.end == begin + 5


def _begin(folder: Path) -> float:
    return read(folder).calls[0].begin
