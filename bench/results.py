"""What a case has found, and what was to be found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .timing import Samples


class Row(NamedTuple):
    """One line of a table: who, the median and the 99th percentile in the result's unit, and ours as times of it."""

    who: str
    median: float
    p99: float | None = None
    note: str = ""


class Target(NamedTuple):
    """A figure to reach: at most so much, or at least."""

    limit: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


TARGETS = {
    "redis_pair_vs_raw": Target(1.15),
    "redis_pair_vs_redis_py": Target(1.10),
    "python_redis_lock_vs_redis_pair": Target(1.4, at_least=True),
    "postgres_pair_vs_bare": Target(1.15),
    "mariadb_pair_vs_bare": Target(1.15),
    "django_db_mutex_vs_postgres_pair": Target(2.5, at_least=True),
    "postgres_refused_vs_granted": Target(0.25),
    "postgres_contended_vs_upsert": Target(2.0, at_least=True),
    "memory_pair_vs_threading_lock": Target(60),
    "redis_renewal_cpu": Target(2),
    "postgres_rows": Target(1.3),
    "mariadb_rows": Target(1.3),
    "sqlite_rows": Target(1.3),
    "import_ms": Target(5),
    "async_redis_pair_vs_raw": Target(1.2),
    "redis_handoff_vs_blpop": Target(2.0),
    "redis_py_handoff_vs_redis": Target(15, at_least=True),
    "notify_handoff_ms": Target(4),
    "polling_handoff_vs_notify": Target(10, at_least=True),
    "memory_handoff_vs_condition": Target(3),
    "redis_release_vs_silent": Target(1.03),
    "notify_release_vs_polling": Target(1.03),
}


@dataclass
class Result:
    """A table, with what it says about the targets."""

    title: str
    unit: str = "µs"
    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, samples: Samples, unit: float = 1e6) -> None:
        """Add a row for each contestant."""
        self.rows += [Row(who, sample.median * unit, sample.p99 * unit) for who, sample in samples.items()]
