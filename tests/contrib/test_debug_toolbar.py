"""django-debug-toolbar, through its own middleware."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

pytest.importorskip("debug_toolbar", reason="pip install django-debug-toolbar")

from django.core.checks.registry import registry
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import include, path

from django_locks import locks, with_lock
from django_locks.testing import hold, lose
from testproject import settings as project


@with_lock("page:{number}")
def under_lock(number):
    return "done"


def page(request):
    under_lock(1)
    locks.acquire("waited", wait=10).release()
    under_lock(2)
    guard = locks.acquire("lost")
    lose(guard)
    kept.append(locks.acquire("kept"))
    return HttpResponse("<html><body>page</body></html>")


async def async_page(request):
    async with locks.lock("async"):
        await asyncio.to_thread(under_lock, 1)
    return HttpResponse("<html><body>page</body></html>")


def quiet(request):
    thread = threading.Thread(target=under_lock, args=(1,))
    thread.start()
    thread.join()
    return HttpResponse("<html><body>page</body></html>")


kept = []


@pytest.fixture(autouse=True)
def _toolbar(memory_locks):
    checks = set(registry.registered_checks)
    with (
        override_settings(
            DEBUG=True,
            INTERNAL_IPS=["127.0.0.1"],
            MIDDLEWARE=["debug_toolbar.middleware.DebugToolbarMiddleware"],
            DEBUG_TOOLBAR_PANELS=["django_locks.contrib.debug_toolbar.LocksPanel"],
        ),
        override_settings(INSTALLED_APPS=[*project.INSTALLED_APPS, "debug_toolbar"]),  # its ready() reads the panels
    ):
        views = path("page", page), path("async", async_page), path("quiet", quiet)
        with override_settings(ROOT_URLCONF=(*views, path("__debug__/", include("debug_toolbar.urls")))):
            yield
    registry.registered_checks.intersection_update(checks)  # the toolbar's fail where it is not installed
    for guard in kept:
        guard.release()
    kept.clear()


def shown(response):
    """Return the toolbar's side bar, and what its panel shows when it is opened, as text."""
    bar = response.content.decode()
    (request_id,) = re.findall(r'data-request-id="(\w+)"', bar)
    panel = Client().get("/__debug__/render_panel/", {"request_id": request_id, "panel_id": "LocksPanel"})
    cells = re.sub(r"<[^>]+>", " ", panel.json()["content"])
    return bar, " ".join(cells.split())


def test_request_shows_its_locks_waits_and_refusals():
    with hold("page:2", by="cron"), hold("waited", ttl=0.2):
        bar, panel = shown(Client().get("/page"))
    assert "4 taken, 1 refused" in bar, bar + panel
    for row in (
        r"page:1 page:{number} default \d+\.\d ms \d+\.\d ms released",
        r"waited default \d{2,}\.\d ms \d+\.\d ms released",
        r"page:2 page:{number} default \d+\.\d ms refused cron",
        r"lost default \d+\.\d ms \d+\.\d ms lost",
        r"kept default \d+\.\d ms held",
    ):
        assert re.search(row, panel), panel


def test_async_request_shows_its_locks_in_threads_too():
    bar, panel = shown(asyncio.run(AsyncClient().get("/async")))
    assert "2 taken, 0 refused" in bar, bar + panel
    assert "async" in panel
    assert "page:1" in panel


def test_locks_of_others_are_not_shown():
    bar, panel = shown(Client().get("/quiet"))
    assert "0 taken, 0 refused" in bar
    assert "no lock" in panel
    from django_locks.contrib.debug_toolbar import _panel  # not before the toolbar is installed

    assert _panel.get() is None  # what this thread takes from now on is no request's
