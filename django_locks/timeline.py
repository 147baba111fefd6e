"""The picture of a lock's last runs: a lane a host, a bar a run. Places in it are in its own units. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils import timezone

from django_locks.models import Run
from django_locks.rows import outcome_label, spoken
from django_locks.text import printable

WIDTH, LEFT, LANE, TOP = 960, 180, 26, 8
MOST_LANES = 12
THINNEST = 3.0
TICKS = 4


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    outcome: str
    title: str


class Lane(NamedTuple):
    y: float
    label: str


class Tick(NamedTuple):
    x: float
    label: str


class Picture(NamedTuple):
    height: int
    axis: int
    lanes: list[Lane]
    bars: list[Bar]
    ticks: list[Tick]


def picture(runs: Sequence[Run], now: datetime) -> Picture | None:
    """Return the picture of the runs until now, or ``None`` if there are none."""
    if not runs:
        return None
    hosts = _hosts(runs)
    start = min(run.started for run in runs)
    span = max((now - start).total_seconds(), 0.001)
    axis = TOP + LANE * len(hosts)

    def x(moment: datetime) -> float:
        part: float = (moment - start).total_seconds() / span
        return round(LEFT + (WIDTH - LEFT - 1) * min(max(part, 0.0), 1.0), 1)

    bars = [_bar(run, x(run.started), x(run.ended or now), TOP + LANE * hosts.index(_lane(run, hosts))) for run in runs]
    lanes = [Lane(TOP + LANE * number, printable(host)) for number, host in enumerate(hosts)]
    moments = [start + timedelta(seconds=span * number / TICKS) for number in range(TICKS + 1)]
    form = "%H:%M:%S" if span < 24 * 3600 else "%Y-%m-%d %H:%M"
    ticks = [Tick(x(moment), f"{timezone.localtime(moment):{form}}") for moment in moments]
    return Picture(axis + 22, axis, lanes, bars, ticks)


def percentiles(runs: Sequence[Run]) -> dict[int, float]:
    """Return the duration below which 50 and 99 per cent of the finished runs are; empty without any."""
    durations = sorted(run.duration or 0.0 for run in runs if run.outcome in ("released", "failed"))
    if not durations:
        return {}
    return {percent: durations[math.ceil(len(durations) * percent / 100) - 1] for percent in (50, 99)}


def _bar(run: Run, start: float, end: float, y: float) -> Bar:
    took = "" if run.duration is None else f", {spoken(run.duration)}"
    begun = f"{timezone.localtime(run.started):%Y-%m-%d %H:%M:%S}"
    title = f"{begun}{took}, {outcome_label(run.outcome, run.error)} – {printable(run.holder)}"  # noqa: RUF001
    width = max(end - start, THINNEST)
    return Bar(min(start, WIDTH - width), y + 4, round(width, 1), run.outcome or "running", title)


def _hosts(runs: Sequence[Run]) -> list[str]:
    """Return the hosts by name; where there are too many, those of the earliest runs share the last lane."""
    hosts = list(dict.fromkeys(host_of(run) for run in runs))
    return sorted(hosts) if len(hosts) <= MOST_LANES else [*sorted(hosts[: MOST_LANES - 1]), "…"]


def _lane(run: Run, hosts: list[str]) -> str:
    host = host_of(run)
    return host if host in hosts else hosts[-1]


def host_of(run: Run) -> str:
    """Return the host: what stands before the first colon of a holder."""
    return run.holder.partition(":")[0] or "?"
