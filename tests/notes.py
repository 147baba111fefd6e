"""A table of the project's own, beside the leases, in which a test can see what was committed."""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections

from django_locks import conf
from tests.crew import Spec

SERVERS = ["postgresql", "mariadb"]


def use(kind: str, spec_of: Any, settings: Any) -> str:
    spec: Spec = spec_of(kind)
    settings.LOCKS = {"default": spec.locks}
    alias: str = spec.locks["LOCATION"]
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS notes")
        cursor.execute("CREATE TABLE notes (text varchar(50))")
    return alias


def write(alias: str, text: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO notes VALUES (%s)", [text])


def notes(alias: str) -> list[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT text FROM notes ORDER BY text")
        return [text for (text,) in cursor.fetchall()]


def is_held(name: str) -> bool:
    """Ask as another process would."""
    store = conf.build_store("default")
    from django_locks.stores.base import here

    here.own = "callers"
    try:
        return store.get(name) is not None
    finally:
        here.own = ""


class Undo(Exception):
    pass


def in_thread(call: Any) -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return results[0]
