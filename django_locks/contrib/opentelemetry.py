"""OpenTelemetry: spans `lock.acquire` and `lock.hold`, and metrics, by the API package alone.

Call `instrument` once, where the application sets up its SDK. Without an SDK the API does nothing.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from django.dispatch import Signal
from opentelemetry import metrics, trace
from opentelemetry.trace import Status, StatusCode

from django_locks import __version__, signals
from django_locks.guard import LockGuard

SCOPE = "django_locks"
SECOND = 1_000_000_000  # in the nanoseconds of OpenTelemetry
WAITS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300]  # seconds
HOLDS = [0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 43200]  # seconds


def instrument(
    tracer_provider: trace.TracerProvider | None = None, meter_provider: metrics.MeterProvider | None = None
) -> Instrumentation:
    """Make spans and metrics of what happens to locks from now on; default: by the global providers.

    Called again, it replaces what was there.
    """
    uninstrument()
    instrumentation = Instrumentation(
        trace.get_tracer(SCOPE, __version__, tracer_provider), metrics.get_meter(SCOPE, __version__, meter_provider)
    )
    _active.append(instrumentation)
    return instrumentation


def uninstrument() -> None:
    """Make none any more."""
    while _active:
        _active.pop().disconnect()


class Instrumentation:
    """The receivers of the signals. A span's parent is the one that was current where the lock was asked for.

    `lock.hold` is not the current span of its block: a lock need not be given back where it was taken. A guard that is
    dropped or detached leaves no such span.
    """

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._open: weakref.WeakKeyDictionary[LockGuard, trace.Span] = weakref.WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()
        self._turn = threading.RLock()  # a signal handler may release a lock
        self._acquires = meter.create_histogram(
            "lock.acquire.duration",
            "s",
            "Seconds from the call until the lock was granted or refused.",
            explicit_bucket_boundaries_advisory=WAITS,
        )
        self._holds = meter.create_histogram(
            "lock.hold.duration",
            "s",
            "Seconds from the grant until the lock was given back or lost.",
            explicit_bucket_boundaries_advisory=HOLDS,
        )
        self._skips = meter.create_counter("lock.skips", "{call}", "Calls that were not run: the lock was busy.")
        meter.create_observable_up_down_counter("lock.held", [self._held], "{lock}", "Locks that this process holds.")
        self._receivers: dict[Signal, Callable[..., None]] = {
            signals.lease_acquired: self._acquired,
            signals.lease_released: self._released,
            signals.lease_lost: self._lost,
            signals.lock_refused: self._refused,
            signals.lock_skipped: self._skipped,
        }
        for signal, receiver in self._receivers.items():
            signal.connect(receiver)

    def disconnect(self) -> None:
        """Hear nothing any more, and hold nothing."""
        for signal, receiver in self._receivers.items():
            signal.disconnect(receiver)
        self._open.clear()

    def _acquired(
        self, *, alias: str, name: str, template: str, guard: LockGuard, waited: float, **kwargs: Any
    ) -> None:
        labels = _labels(alias, template)
        of_guard: dict[str, str | int] = {
            **labels,
            "lock.name": name,
            "lock.holder": guard.holder,
            "lock.fence": guard.fence,
        }
        self._asked("granted", waited, labels, of_guard)
        span = self._tracer.start_span("lock.hold", attributes=of_guard)
        with self._turn:
            self._open[guard] = span

    def _refused(self, *, alias: str, name: str, template: str, waited: float, **kwargs: Any) -> None:
        labels = _labels(alias, template)
        self._asked("busy", waited, labels, {**labels, "lock.name": name})

    def _asked(self, outcome: str, waited: float, labels: dict[str, str], attributes: dict[str, Any]) -> None:
        now = time.time_ns()
        self._tracer.start_span(
            "lock.acquire",
            attributes={**attributes, "lock.outcome": outcome},
            start_time=now - int(waited * SECOND),
        ).end(now)
        self._acquires.record(waited, {**labels, "lock.outcome": outcome})

    def _released(
        self, *, guard: LockGuard, outcome: str, error: type[BaseException] | None, held: float, **kwargs: Any
    ) -> None:
        self._ended(guard, outcome, held, error.__name__ if error else "")

    def _lost(self, *, guard: LockGuard, held: float, reason: str, **kwargs: Any) -> None:
        self._ended(guard, "lost", held, f"The lease {reason}")

    def _ended(self, guard: LockGuard, outcome: str, held: float, problem: str) -> None:
        self._holds.record(held, {**_labels(guard.alias, guard.template), "lock.outcome": outcome})
        with self._turn:
            span = self._open.pop(guard, None)
        if span is None:  # taken before, or elsewhere
            return
        span.set_attribute("lock.outcome", outcome)
        if problem:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end()

    def _skipped(self, *, alias: str, template: str, **kwargs: Any) -> None:
        self._skips.add(1, _labels(alias, template))

    def _held(self, options: metrics.CallbackOptions) -> Iterator[metrics.Observation]:
        with self._turn:
            guards = list(self._open)
        held = Counter((guard.alias, guard.template) for guard in guards if guard.remaining)
        # What was held before is told to be held no more, or it would be taken for unchanged.
        self._told |= held.keys()
        for of in self._told:
            yield metrics.Observation(held[of], _labels(*of))


def _labels(alias: str, template: str) -> dict[str, str]:
    return {"lock.store": alias, "lock.template": template}


_active: list[Instrumentation] = []
