"""Uncontended pairs and refusals on the databases."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from bench.peers import available
from bench.results import Result
from bench.rival_tables import Bare
from bench.servers import World
from bench.timing import async_interleaved, interleaved, ratio

from .memory import pair

NEEDS = {"postgres", "mariadb", "sqlite"}
SECONDS = {"postgres": (2.5, 25), "mariadb": (1.2, 15), "sqlite": (0.4, 5)}
TITLES = {"postgres": "PostgreSQL", "mariadb": "MariaDB", "sqlite": "SQLite (WAL)"}
OURS, BARE = "django_locks", "two bare statements, Django's cursor"


def run(world: World, quick: bool) -> list[Result]:
    results = []
    for kind in ("postgres", "mariadb", "sqlite"):
        if world.has(kind):
            results += [_pair(kind, quick), _refused(kind, quick)]
            if not quick:
                results.append(asyncio.run(_from_asyncio(kind)))
    return results


def _pair(kind: str, quick: bool) -> Result:
    from django.db import connections

    from django_locks import locks

    ours, connection = locks.using(kind), connections[kind]
    result = Result(f"{TITLES[kind]}: acquire and release")
    makers: dict[str, Callable[[], Any]] = {
        OURS: lambda: lambda: pair(ours),
        BARE: lambda: Bare(connection.vendor, connection.cursor).pair,
        "ORM: get_or_create, update": lambda: lambda: _orm(kind),
        "select_for_update": lambda: lambda: _for_update(kind),
    }
    if kind != "sqlite":
        makers["two bare statements, the driver's cursor"] = lambda: Bare(connection.vendor, _raw_cursor(kind)).pair
        makers["SELECT 1"] = lambda: lambda: _select_one(connection)
    if kind == "postgres":
        makers |= {"django-db-mutex": _db_mutex, "django-pglock (advisory: no TTL, no fence)": _pglock}
    samples = interleaved(available(makers, result.notes), SECONDS[kind][not quick], 4)
    result.take(samples)
    if kind != "sqlite":
        result.ratios[f"{kind}_pair_vs_bare"] = ratio(samples, OURS, BARE)
    if "django-db-mutex" in samples:
        result.ratios["django_db_mutex_vs_postgres_pair"] = ratio(samples, "django-db-mutex", OURS)
    return result


def _refused(kind: str, quick: bool) -> Result:
    """Compare an attempt that is refused with one that is granted, whose release is not counted."""
    from django.db import connections

    from django_locks import locks

    ours, connection = locks.using(kind), connections[kind]
    bare = Bare(connection.vendor, connection.cursor, "held")
    held, _ = ours.try_acquire("held"), bare.take("0" * 32)
    result = Result(f"{TITLES[kind]}: one attempt")
    contestants = {
        "granted": _Granted(ours),
        "refused": lambda: ours.try_acquire("held"),
        "refused, bare upsert": lambda: bare.take("1" * 32),
    }
    samples = interleaved(contestants, 0.8 if quick and kind == "postgres" else 0.3 if quick else 8, 5)
    held.release()
    result.take(samples)
    if kind == "postgres":
        result.ratios["postgres_refused_vs_granted"] = ratio(samples, "refused", "granted")
    return result


async def _from_asyncio(kind: str) -> Result:
    """Compare with what somebody would write by hand: the same two statements, handed to a thread."""
    from asgiref.sync import sync_to_async
    from django.db import connections

    from django_locks import locks

    ours = locks.using(kind)
    bare = await sync_to_async(lambda: Bare(connections[kind].vendor, connections[kind].cursor))()
    take, free = sync_to_async(bare.take), sync_to_async(bare.free)

    async def pair_of_ours() -> None:
        guard = await ours.atry_acquire("async")
        await guard.arelease()

    async def by_hand() -> None:
        owner = secrets.token_hex(16)
        assert await take(owner)
        assert await free(owner)

    contestants = {OURS: pair_of_ours, "two bare statements by sync_to_async": by_hand}
    result = Result(f"{TITLES[kind]} from asyncio: acquire and release")
    result.take(await async_interleaved(contestants, 5, 10))
    return result


class _Granted:
    """Takes a free name at each call, and gives it back off the clock."""

    def __init__(self, ours: Any) -> None:
        self._ours = ours

    def __call__(self) -> None:
        self._guard = self._ours.try_acquire("granted")

    def after(self) -> None:
        self._guard.release()


def _raw_cursor(kind: str) -> Callable[[], Any]:
    """Return what opens a cursor of a connection of the driver's own, in autocommit."""
    from django.db import connections

    raw = connections[kind].get_new_connection(connections[kind].get_connection_params())
    commits = getattr(raw, "autocommit", None)
    if callable(commits):
        commits(True)
    else:
        raw.autocommit = True

    @contextmanager
    def cursor() -> Any:
        with raw.cursor() as opened:
            yield opened

    return cursor


def _select_one(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchall()


def _orm(kind: str) -> None:
    """Do with the ORM alone what most projects write: the application's clock, two or three statements."""
    from django.db.models import Q
    from django.utils import timezone

    from django_locks.models import Lease

    rows, now = Lease.objects.using(kind), timezone.now()
    wanted = {"owner": "me", "expires_at": now + timedelta(seconds=30), "acquired_at": now, "holder": "me"}
    taken = rows.filter(Q(expires_at__lte=now), name="orm").update(**wanted)
    if not taken:
        rows.get_or_create(name="orm", defaults={**wanted, "fence": 1})
    assert rows.filter(name="orm", owner="me").update(owner="", expires_at=now)


def _for_update(kind: str) -> None:
    """Lock a row for the length of a transaction: no TTL, and it takes the connection's transaction."""
    from django.db import transaction

    from django_locks.models import Lease

    with transaction.atomic(using=kind):
        assert list(Lease.objects.using(kind).select_for_update().filter(name="orm")) is not None


def _db_mutex() -> Any:
    from db_mutex.db_mutex import db_mutex

    def call() -> None:
        with db_mutex("bench"):
            pass

    return call


def _pglock() -> Any:
    import pglock

    def call() -> None:
        with pglock.advisory("bench", timeout=0, using="postgres"):
            pass

    return call
