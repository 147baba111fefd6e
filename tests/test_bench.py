"""The benchmark: what it promises to programs that read it."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree as ElementTree

import pytest

from bench import chart, report, timing
from bench.__main__ import CASES
from bench.results import TARGETS, Result, Row

KEYS = """
    redis_pair_vs_raw redis_pair_vs_redis_py python_redis_lock_vs_redis_pair postgres_pair_vs_bare mariadb_pair_vs_bare
    django_db_mutex_vs_postgres_pair postgres_refused_vs_granted postgres_contended_vs_upsert
    memory_pair_vs_threading_lock redis_renewal_cpu postgres_rows mariadb_rows sqlite_rows import_ms
    async_redis_pair_vs_raw redis_handoff_vs_blpop redis_py_handoff_vs_redis notify_handoff_ms
    polling_handoff_vs_notify memory_handoff_vs_condition redis_release_vs_silent notify_release_vs_polling
"""


def test_figures_with_a_target_keep_their_names() -> None:
    assert list(TARGETS) == KEYS.split()


@pytest.mark.parametrize("name", CASES)
def test_case_says_which_servers_it_needs(name: str) -> None:
    case = importlib.import_module(f"bench.cases.{name}")
    assert {"postgres", "mariadb", "redis", "sqlite"} >= case.NEEDS
    assert callable(case.run)


def test_contestants_take_turns_and_ratios_are_of_single_rounds() -> None:
    calls: list[str] = []
    samples = timing.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0.001, calls=2)
    assert calls[2 * timing.WARM_UP :][:8] in (list("aabbbbaa"), list("aabb"))
    assert len(samples["a"].rounds) == len(samples["b"].rounds)
    made = {"a": timing.Sample([], [2.0, 30.0, 8.0]), "b": timing.Sample([], [1.0, 10.0, 2.0])}
    assert timing.ratio(made, "a", "b") == 3.0


def test_report_puts_ratios_first_and_only_those_with_a_target() -> None:
    result = Result("A pair", rows=[Row("ours", 2.0, 3.0), Row("theirs", 4.0)], ratios={"redis_pair_vs_raw": 1.0})
    found = report.as_object([result], {}, [])
    assert found["ratios"] == {"redis_pair_vs_raw": 1.0}
    assert next(iter(found)) == "ratios"
    assert found["met"] == {"redis_pair_vs_raw": True}


def test_chart_is_well_formed_and_knows_dark_pages() -> None:
    drawn = chart.draw([Result(chart.CHARTED[0], rows=[Row("django_locks", 2.0), Row("a < b & c", 4.0)])])
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in drawn
