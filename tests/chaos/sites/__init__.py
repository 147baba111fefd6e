"""Where the locks and the counters are, a module for each family of stores, and what can happen to their servers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from tests.chaos.nemesis import Fault
from tests.crew import Spec

ALIAS = "chaos"  #: of the database of the counters, and of the leases if they are in one


class Site(NamedTuple):
    near: Spec
    far: Spec  #: the same, by way of a network that can be disturbed where there is one
    faults: list[Fault]
    transactions: bool = True  #: can a lock be taken inside a transaction?


#: Given the entry in DATABASES for the counters, unless the site brings a database of its own, and the TTL.
Open = Callable[[dict[str, Any], float], AbstractContextManager[Site]]


def sites() -> dict[str, Open]:
    """Return all sites by the name of their store."""
    from . import databases, failover, redis

    return {
        "redis": redis.lasting,
        "valkey": redis.forgetful,
        "sentinel": failover.sentinel,
        "confirmed": failover.confirmed,
        "cluster": failover.cluster,
        "postgresql": databases.postgresql,
        "mariadb": databases.mariadb,
        "sqlite": databases.sqlite,
    }
