"""What the examples of a page take for granted: the reader's models, functions and task queues."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django.conf import settings

import django_locks


def names(page: str) -> dict[str, Any]:
    """Return the name space in which the blocks of the page are run."""
    api = {name: getattr(django_locks, name) for name in django_locks.__all__}
    return {**api, **_anywhere(), **PAGES.get(page, dict)()}


def _anywhere() -> dict[str, Any]:
    functions = dict.fromkeys(("charge", "ship", "work", "import_rows", "fetch_mail"), _nothing)
    return {
        "invoice": SimpleNamespace(pk=42, save=_nothing),
        "account": SimpleNamespace(pk=7, balance=100, save=_nothing, refresh_from_db=_nothing),
        "BASE_DIR": Path.cwd(),
        "DATABASES": dict(settings.DATABASES),
        **functions,
    }


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _queues() -> dict[str, Any]:
    """Task queues that need no server."""
    import dramatiq
    from dramatiq.brokers.stub import StubBroker

    from django_locks.leader import Leader

    dramatiq.set_broker(StubBroker())
    if find_spec("django.tasks") is None:  # before Django 6.0
        import django_tasks

        sys.modules["django.tasks"] = django_tasks
    looks = iter([True, False])
    Leader.wait = lambda self, seconds: next(looks)  # type: ignore[method-assign]  # leads for one round
    return _celery()


def _celery() -> dict[str, Any]:
    from celery import Celery

    return {"app": Celery("shop", broker="memory://")}


def _unfold() -> dict[str, Any]:
    from django.contrib import admin

    return {"unfold": SimpleNamespace(admin=admin)}


def _others() -> dict[str, Any]:
    return {**_celery(), "pglock": SimpleNamespace()}


PAGES = {"admin": _unfold, "schedulers": _queues, "moving": _others}
