"""Runs of some seconds a store, or of ``--chaos-minutes``."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.fixtures_redis import started

from .run import TTL, Plan, Run, run
from .sites import sites

SECONDS = 2.5
AROUND = 90  # seconds that a run takes besides, at the most
OWN_DATABASE = ("postgresql", "mariadb", "sqlite")

Disturb = Callable[..., Run]


@pytest.fixture
def disturb(request: pytest.FixtureRequest, django_db_blocker: Any, record_property: Any) -> Disturb:
    """Disturb those who use a store, and return what came of it."""
    given = request.config.getoption("--chaos-seed")

    def disturb(store: str, **plan: Any) -> Run:
        seed = given or str(random.SystemRandom().randrange(10**6))  # the other generators begin alike in each process
        print(f"seed {seed}")
        data = {} if store in OWN_DATABASE else request.getfixturevalue("postgresql").settings
        with django_db_blocker.unblock(), contextmanager(started)(sites()[store](data, TTL)) as site:
            result = run(Plan(store, seed=seed, **{"seconds": _seconds(request.config), **plan}), site)
        print(result.report())
        record_property("chaos", json.dumps(result.as_object()))
        return result

    return disturb


@pytest.fixture
def survives(disturb: Disturb) -> Callable[[str], None]:
    """Disturb those who use a store, and expect no violation."""

    def survives(store: str) -> None:
        result = disturb(store)
        if not (result.history.rows or result.verdict.violations):  # the machine was too busy for so short a run
            result = disturb(store, seconds=5 * SECONDS)
        assert not result.verdict.violations, result.report()
        assert result.history.faults
        assert result.history.rows

    return survives


def _seconds(config: pytest.Config) -> float:
    minutes: float = config.getoption("--chaos-minutes")
    return minutes * 60 or SECONDS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "disturb" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(_seconds(config) + AROUND))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, value in report.user_properties:
            if name == "chaos" and report.when == "call":
                terminalreporter.write_line(value)
