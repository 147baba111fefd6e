"""What a history must never show.

Each rule yields what breaks it, with the time when it did. What a store does not promise is counted apart: see
`EXCUSES`, and the table in README.md.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .history import FAILED, FORCE, Belief, Call, Fault, History

SLACK = 0.05  # seconds: the store's clock and ours are the same one, read by different processes

OVERLAP, FENCE, TAKEOVER, REFUSAL = "overlap", "fence", "renewal after a takeover", "refusal of a free name"
KEPT = "grant of a name that was kept"
REVIVAL, LOST_UPDATE, TROUBLE = "belief after a loss", "lost update", "trouble"

#: Faults after which a rule may be broken, by what no store of their kind promises to survive. Everything else is a
#: violation at any time: fences, and fenced writes above all.
EXCUSES: dict[str, frozenset[str]] = {
    "flush": frozenset({OVERLAP, KEPT}),
    "delete rows": frozenset({OVERLAP, KEPT}),
    "restart empty": frozenset({OVERLAP, KEPT}),
    FORCE: frozenset({OVERLAP, KEPT}),
    # Of two servers that take themselves for the primary, each has the leases of those who ask it.
    "fail over": frozenset({OVERLAP, KEPT, TAKEOVER, REFUSAL}),
    "fail over from a stopped primary": frozenset({OVERLAP, KEPT, TAKEOVER, REFUSAL}),
}


class Finding(NamedTuple):
    rule: str
    begin: float
    end: float
    text: str


class Verdict(NamedTuple):
    violations: list[Finding]
    excused: list[Finding]


def check(history: History, ttl: float, *, ended: bool = True) -> Verdict:
    """Return what breaks a rule, and what would if a fault had not been outside of what the store promises.

    Of a history that goes on only what cannot be made good by what is still to come.
    """
    verdict = Verdict([], [])
    for rule in RULES if ended else (overlaps, fences, renewals, kept, revivals):
        for finding in rule(history):
            excused = any(_excuses(fault, finding, ttl) for fault in history.faults)
            (verdict.excused if excused else verdict.violations).append(finding)
    return verdict


def _excuses(fault: Fault, finding: Finding, ttl: float) -> bool:
    """A store may forget what it knows, but the holder hears of it when he renews, or after a TTL."""
    known = finding.rule in EXCUSES.get(fault.kind, ())
    return known and fault.begin <= finding.begin and finding.end <= fault.end + ttl + SLACK


def overlaps(history: History) -> Iterator[Finding]:
    """No two hold a name at once."""
    for name in history.names:
        current: list[Belief] = []
        for belief in sorted((one for one in history.beliefs if one.name == name), key=lambda one: one.since):
            current = [other for other in current if other.until > belief.since]
            for other in current:
                end = min(other.until, belief.until)
                yield Finding(OVERLAP, belief.since, end, f"two hold {name!r}: {other} and {belief}")
            current.append(belief)


def fences(history: History) -> Iterator[Finding]:
    """A grant that was asked for after another one was made has a higher fence; no two have the same."""
    for name in history.names:
        grants = [call for call in history.of(name, "acquire") if type(call.answer) is int]
        for call, earlier in _with_earlier(grants, grants):
            if earlier.answer >= call.answer and earlier.owner != call.owner:
                yield Finding(FENCE, call.begin, call.end, f"a fence of {name!r} fell: {earlier} and then {call}")
        owners: dict[int, str] = {}
        for call in grants:
            if owners.setdefault(call.answer, call.owner) != call.owner:
                yield Finding(FENCE, call.begin, call.end, f"a fence of {name!r} was granted twice: {call}")


def renewals(history: History) -> Iterator[Finding]:
    """Whoever was overtaken does not renew."""
    for name in history.names:
        grants = [call for call in history.of(name, "acquire") if type(call.answer) is int]
        fence_of = {grant.owner: grant.answer for grant in grants}
        for call, earlier in _with_earlier([one for one in history.of(name, "renew") if one.answer is True], grants):
            if earlier.answer > fence_of.get(call.owner, math.inf):
                yield Finding(TAKEOVER, call.begin, call.end, f"{call} renewed {name!r} after {earlier}")


def refusals(history: History) -> Iterator[Finding]:
    """Nobody is refused unless somebody may hold the name: a lease ends with its release, or a TTL after its renewal.

    So a name is free within a TTL of its holder's end, whatever that was.
    """
    for name in history.names:
        leases = _union(_leases(history, name))
        begins = [begin for begin, _ in leases]
        for call in history.of(name, "acquire"):
            if call.answer is None:
                place = bisect.bisect_right(begins, call.end) - 1
                if place < 0 or leases[place][1] < call.begin:
                    yield Finding(REFUSAL, call.begin, call.end, f"{call} was refused, and nobody held {name!r}")


def kept(history: History) -> Iterator[Finding]:
    """Nobody is granted a name that its holder has released, but keeps for a while (``at_least``)."""
    for name in history.names:
        grants = sorted((call for call in history.of(name, "acquire") if type(call.answer) is int), key=_begin)
        for release in history.of(name, "release"):
            if release.ttl <= 0 or release.answer is not True:
                continue
            for call in grants[bisect.bisect_right(grants, release.end, key=_begin) :]:
                if call.end >= release.begin + release.ttl - SLACK:
                    break
                # What has let it in may have come as late as that.
                yield Finding(KEPT, call.end, call.end, f"{call} was granted {name!r} in spite of {release}")


def revivals(history: History) -> Iterator[Finding]:
    """A lost guard never comes back to life."""
    for belief in history.beliefs:
        if belief.until > belief.lost:
            yield Finding(REVIVAL, belief.lost, belief.until, f"{belief} was held again")


def lost_updates(history: History) -> Iterator[Finding]:
    """Every increment that was committed counts, whatever happened; what was said to have failed was not committed."""
    rows = {row.op: row for row in history.rows}
    for write in history.writes:
        committed = write.op in rows
        if write.outcome == ("failed" if committed else "ok"):
            yield _for_ever(LOST_UPDATE, f"{write}, and in the journal is {rows.get(write.op)}")
    for name, total in history.counters.items():
        journal = sorted((row for row in history.rows if row.name == name), key=lambda row: row.value)
        if [row.value for row in journal] != list(range(1, total + 1)):
            yield _for_ever(LOST_UPDATE, f"{name!r} counts {total}, by {len(journal)} increments: {journal}")
        for before, after in itertools.pairwise(journal):
            if before.fence > after.fence:
                yield _for_ever(LOST_UPDATE, f"an earlier holder wrote after a later one: {before} and then {after}")


def troubles(history: History) -> Iterator[Finding]:
    """No worker fails or hangs, and no lease is left when all of them have ended."""
    for trouble in history.troubles:
        yield _for_ever(TROUBLE, trouble)


RULES: list[Callable[[History], Iterator[Finding]]] = [
    overlaps,
    fences,
    renewals,
    refusals,
    kept,
    revivals,
    lost_updates,
    troubles,
]


def _with_earlier(calls: list[Call], grants: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Yield each call with the grant of the highest fence that was made before it was sent, if there is one."""
    waiting = sorted(grants, key=lambda grant: grant.end, reverse=True)
    highest: Call | None = None
    for call in sorted(calls, key=_begin):
        while waiting and waiting[-1].end < call.begin:
            grant = waiting.pop()
            highest = grant if highest is None or grant.answer > highest.answer else highest
        if highest is not None:
            yield call, highest


def _leases(history: History, name: str) -> Iterator[tuple[float, float]]:
    """Yield from when to when a lease of the name may have been live."""
    released = {call.owner: call.end for call in history.of(name, "release") if call.answer is True}
    for call in history.of(name, "acquire", "renew", "release"):
        if call.answer in (None, False):
            continue
        end = call.end + call.ttl
        if call.answer != FAILED and call.verb != "release":  # what failed may have been executed after the release
            end = min(end, released.get(call.owner, math.inf))
        yield call.begin, end + SLACK


def _begin(call: Call) -> float:
    return call.begin


def _union(spans: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    union: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((begin, end))
    return union


def _for_ever(rule: str, text: str) -> Finding:
    return Finding(rule, -math.inf, math.inf, text)
