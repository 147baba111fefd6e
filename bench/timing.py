"""Time several ways to do the same thing, taking turns, so that whatever slows the machine down slows all of them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

WARM_UP = 5


class Sample(NamedTuple):
    """Durations of one contestant, in seconds: all of them, and the median of each round."""

    durations: list[float]
    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.durations)

    @property
    def p99(self) -> float:
        return percentile(self.durations, 0.99)


Samples = dict[str, Sample]


def percentile(values: list[float], share: float) -> float:
    """Return the value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ratio(samples: Samples, one: str, other: str) -> float:
    """Return how much longer ``one`` takes than ``other``: the median of what the single rounds say."""
    pairs = zip(samples[one].rounds, samples[other].rounds, strict=True)
    return statistics.median(a / b for a, b in pairs)


def interleaved(contestants: Mapping[str, Callable[[], object]], seconds: float, calls: int = 20) -> Samples:
    """Call all in turn, ``calls`` times each a round, for so many seconds. Each round begins with another one."""
    for call in contestants.values():
        _time(call, WARM_UP)
    samples: Samples = {name: Sample([], []) for name in contestants}
    turns, deadline = list(contestants), time.perf_counter() + seconds
    while time.perf_counter() < deadline or not samples[turns[0]].rounds:
        for name in turns:
            _note(samples[name], _time(contestants[name], calls))
        turns.append(turns.pop(0))
    return samples


async def async_interleaved(
    contestants: Mapping[str, Callable[[], Awaitable[object]]], seconds: float, calls: int = 20
) -> Samples:
    """Do as `interleaved`."""
    for call in contestants.values():
        for _ in range(WARM_UP):
            await call()
    samples: Samples = {name: Sample([], []) for name in contestants}
    turns, deadline = list(contestants), time.perf_counter() + seconds
    while time.perf_counter() < deadline or not samples[turns[0]].rounds:
        for name in turns:
            _note(samples[name], await _atime(contestants[name], calls))
        turns.append(turns.pop(0))
        await asyncio.sleep(0)
    return samples


def _time(call: Callable[[], object], calls: int) -> list[float]:
    durations, after = [], getattr(call, "after", None)
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        durations.append(time.perf_counter() - begin)
        if after is not None:  # what the call leaves behind, put away off the clock
            after()
    return durations


async def _atime(call: Callable[[], Awaitable[object]], calls: int) -> list[float]:
    durations = []
    for _ in range(calls):
        begin = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - begin)
    return durations


def _note(sample: Sample, durations: list[float]) -> None:
    sample.durations.extend(durations)
    sample.rounds.append(statistics.median(durations))
