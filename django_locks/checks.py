"""System checks of the setting ``LOCKS``. None connects to anything.

E001  ``LOCKS``, or an entry of it, is malformed
E002  a BACKEND cannot be imported, or is no lock store
E003  OPTIONS or LOCATION do not fit the store
E004  a duration is none
E005  the database store or HISTORY is used without ``django_locks`` in INSTALLED_APPS
E006  the database store's LOCATION is no alias of DATABASES
E007  the default store is in memory (with ``--deploy``)
W008  Django's cache is in the Redis database of the locks
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from . import conf
from .exceptions import InvalidLockStore
from .stores.base import BaseStore


@register("django_locks")
def check_locks(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Say what is wrong with ``LOCKS``."""
    found: list[CheckMessage] = [
        Error(problem.message, hint=problem.hint, id=f"django_locks.{problem.id}") for problem in conf.problems()
    ]
    return found or [message for alias in conf.configured() for message in _store_messages(alias)]


@register("django_locks", deploy=True)
def check_deployment(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Say that a default store in memory excludes nobody."""
    if list(conf.problems()):
        return []
    try:
        local = conf.build_store("default").process_local
    except InvalidLockStore:
        return []
    if not local:
        return []
    return [
        Error(
            "LOCKS['default'] keeps its locks in the memory of one process, so that no other process, replica or "
            "management command is excluded.",
            hint="Use django_locks.stores.database.DatabaseStore or django_locks.stores.redis.RedisStore.",
            id="django_locks.E007",
        )
    ]


def _store_messages(alias: str) -> Iterator[CheckMessage]:
    try:
        store = conf.build_store(alias)
        yield from store.check()
    except InvalidLockStore as error:
        yield Error(str(error), hint="See the section on settings in the documentation.", id="django_locks.E003")
    except Exception as error:  # a third party's store must not end the checks in a traceback
        yield Error(
            f"LOCKS[{alias!r}]: its store cannot be made: {type(error).__name__}: {error}",
            hint="Check its OPTIONS and LOCATION.",
            id="django_locks.E003",
        )
    else:
        yield from _shared_with_cache(alias, store)


def _shared_with_cache(alias: str, store: BaseStore) -> Iterator[CheckMessage]:
    ours = set(getattr(store, "servers", list)())
    for cache, entry in getattr(settings, "CACHES", {}).items():
        theirs = entry.get("LOCATION") if isinstance(entry, dict) else None
        if ours and ours & _servers(type(store), theirs):
            yield Warning(
                f"CACHES[{cache!r}] is in the Redis database of LOCKS[{alias!r}]: cache.clear() empties it (FLUSHDB), "
                "and takes all locks away from their holders.",
                hint="Give the locks a database number or a server of their own.",
                id="django_locks.W008",
            )


def _servers(store_class: type[BaseStore], location: Any) -> set[Any]:
    try:
        return set(store_class("", location).servers())  # type: ignore[attr-defined]
    except Exception:  # no Redis URL: another kind of cache
        return set()
