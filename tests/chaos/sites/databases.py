"""Leases and counters in the same database."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from django.db import OperationalError, connections, transaction

from tests.chaos.nemesis import Fault
from tests.conftest import DATABASE
from tests.crew import Spec
from tests.servers import databases as servers
from tests.servers.proxy import proxy

from . import ALIAS, Site
from .network import network_faults

CONNECTIONS = 60  #: that a server allows
KEPT = {"CONN_MAX_AGE": 600}
#: A pool that is soon empty. Django knows one for PostgreSQL.
POOLED = {"CONN_HEALTH_CHECKS": True, "OPTIONS": {"pool": {"min_size": 0, "max_size": 3, "timeout": 0.5}}}
LEASES = {"BACKEND": DATABASE, "LOCATION": ALIAS}


@contextmanager
def postgresql(_data: object, ttl: float) -> Iterator[Site]:
    with servers.postgres(fsync=True, max_connections=CONNECTIONS) as server:
        yield from _site(server, ttl, pooled=True)


@contextmanager
def mariadb(_data: object, ttl: float) -> Iterator[Site]:
    with servers.mariadb(fsync=True, max_connections=CONNECTIONS) as server:
        yield from _site(server, ttl)


@contextmanager
def sqlite(_data: object, ttl: float) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="locks-chaos-") as folder:
        file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder) / "db"), "OPTIONS": {"timeout": 10}}
        spec = Spec(LEASES, {ALIAS: file})
        yield Site(spec, spec, _faults_of_rows(), transactions=False)


def _site(server: servers.Server, ttl: float, *, pooled: bool = False) -> Iterator[Site]:
    faults = [
        Fault.between("restart", server.kill, server.start),
        Fault.between("hang", server.pause, server.resume),
        Fault("refuse clients", _full),
        *_faults_of_rows(),
    ]
    port = int(server.settings["PORT"])
    with proxy(port) as network:
        near, far = (
            Spec(LEASES, {ALIAS: {**server.settings, "PORT": str(port), **more}})
            for port, more in ((port, KEPT), (network.port, POOLED if pooled else KEPT))
        )
        yield Site(near, far, faults + network_faults(network, ttl))


def _faults_of_rows() -> list[Fault]:
    return [Fault("lock rows", _locked), Fault.between("delete rows", _delete)]


@contextmanager
def _locked(chance: random.Random) -> Iterator[None]:
    """Have a transaction open that has written to all rows, and comes to nothing."""
    with _our_connection(), transaction.atomic(using=ALIAS):
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("UPDATE django_locks_lease SET holder = 'a long transaction'")
        yield
        transaction.set_rollback(True, using=ALIAS)


def _delete() -> None:
    with _our_connection(), connections[ALIAS].cursor() as cursor:
        cursor.execute("DELETE FROM django_locks_lease")


@contextmanager
def _full(chance: random.Random) -> Iterator[None]:
    """Take all connections that the server allows."""
    taken = []
    try:
        with suppress(OperationalError):
            while len(taken) < CONNECTIONS:
                taken.append(connections[ALIAS].copy())
                taken[-1].ensure_connection()
        yield
    finally:
        for connection in taken:
            connection.close()


@contextmanager
def _our_connection() -> Iterator[None]:
    """Connect anew: the server may have been restarted."""
    connections[ALIAS].close()
    try:
        yield
    finally:
        connections[ALIAS].close()
