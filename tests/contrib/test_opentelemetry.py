"""OpenTelemetry, with its SDK in memory."""

from __future__ import annotations

import gc
import weakref

import pytest

pytest.importorskip("opentelemetry.sdk", reason="pip install opentelemetry-sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from django_locks import LeaseLost, locks, with_lock
from django_locks.contrib import opentelemetry
from django_locks.testing import hold, lose


class Telemetry:
    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name):
        """Return the points of a metric by the values of their attributes."""
        data = self.reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
        return {
            tuple(point.attributes.values()): point
            for metric in metrics
            if metric.name == name
            for point in metric.data.data_points
        }


@pytest.fixture(autouse=True)
def telemetry(memory_locks):
    telemetry = Telemetry()
    opentelemetry.instrument(telemetry.tracers, telemetry.meters)
    yield telemetry
    opentelemetry.uninstrument()
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


@with_lock("import:{tenant}")
def import_tenant(tenant):
    return "done"


def test_hold_is_two_spans_of_the_callers_trace(telemetry):
    with telemetry.tracers.get_tracer("test").start_as_current_span("request") as request:
        import_tenant("acme")
    (acquire,), (held,) = telemetry.spans("lock.acquire"), telemetry.spans("lock.hold")
    assert acquire.parent.span_id == held.parent.span_id == request.get_span_context().span_id
    assert acquire.start_time <= acquire.end_time <= held.start_time <= held.end_time
    assert acquire.attributes["lock.outcome"] == "granted"
    assert held.attributes["lock.outcome"] == "released"
    assert (held.attributes["lock.name"], held.attributes["lock.template"]) == ("import:acme", "import:{tenant}")
    assert held.attributes["lock.fence"] > 0
    assert held.status.status_code is StatusCode.UNSET


def test_acquire_span_lasts_as_long_as_the_wait(telemetry):
    with hold("a", ttl=0.2):
        locks.acquire("a", wait=10).release()
    (acquire,) = telemetry.spans("lock.acquire")
    assert 0.1e9 < acquire.end_time - acquire.start_time < 9e9


def test_failed_hold_is_an_error(telemetry):
    with pytest.raises(ZeroDivisionError), locks.lock("a"):
        1 / 0  # noqa: B018
    (held,) = telemetry.spans("lock.hold")
    assert held.attributes["lock.outcome"] == "failed"
    assert (held.status.status_code, held.status.description) == (StatusCode.ERROR, "ZeroDivisionError")


def test_lost_hold_is_an_error_and_ends_at_the_loss(telemetry):
    with pytest.raises(LeaseLost), locks.lock("a") as guard:
        lose(guard)
        (held,) = telemetry.spans("lock.hold")
    assert held.attributes["lock.outcome"] == "lost"
    assert held.status.status_code is StatusCode.ERROR


def test_metrics_are_labelled_by_the_template_never_by_the_name(telemetry):
    for tenant in "abc":
        import_tenant(tenant)
    with hold("import:d"):
        import_tenant("d")
    labels = ("default", "import:{tenant}")
    acquires = telemetry.points("lock.acquire.duration")
    assert {key: point.count for key, point in acquires.items()} == {(*labels, "granted"): 3, (*labels, "busy"): 1}
    assert telemetry.points("lock.hold.duration")[(*labels, "released")].count == 3
    assert telemetry.points("lock.skips")[labels].value == 1


def test_held_locks_are_counted_down_again(telemetry):
    guards = [locks.acquire(name) for name in "ab"]
    assert telemetry.points("lock.held")["default", ""].value == 2
    guards[0].release()
    lose(guards[1])
    assert telemetry.points("lock.held")["default", ""].value == 0


def test_detached_guard_is_not_kept_alive_and_not_counted(telemetry):
    guard = locks.acquire("a")
    assert telemetry.points("lock.held")["default", ""].value == 1
    owner, gone = guard.detach(), weakref.ref(guard)
    assert telemetry.points("lock.held")["default", ""].value == 0
    del guard
    gc.collect()
    assert gone() is None
    assert locks.adopt("a", owner).release()
    assert not telemetry.spans("lock.hold")
    assert telemetry.points("lock.hold.duration")["default", "", "released"].count == 1


def test_instrumented_twice_tells_once(telemetry):
    opentelemetry.instrument(telemetry.tracers, telemetry.meters)
    locks.acquire("a").release()
    assert len(telemetry.spans("lock.hold")) == 1


def test_nothing_is_told_any_more_after_uninstrument(telemetry):
    opentelemetry.uninstrument()
    locks.acquire("a").release()
    assert not telemetry.exporter.get_finished_spans()


def test_owner_is_in_no_span_and_no_metric(telemetry):
    with locks.lock("a") as guard:
        pass
    lost = locks.acquire("b")
    lose(lost)
    spans = [span.to_json() for span in telemetry.exporter.get_finished_spans()]
    whole = "".join(spans) + telemetry.reader.get_metrics_data().to_json()
    assert len(spans) == 4
    for owner in (guard.owner, lost.owner):
        assert str(owner) not in whole
