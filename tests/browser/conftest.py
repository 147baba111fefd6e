"""A real browser at a real server, with locks in PostgreSQL that other processes can hold."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core import signals
from django.db import connections
from django.test import Client

from django_locks.admin import BaseLeaseAdmin
from tests.conftest import DATABASE

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
POLICY = "default-src 'self'"


def strict_policy(page: Any) -> Any:
    """Send a Content-Security-Policy that forbids all that is inline. The running server reads no new MIDDLEWARE."""

    def with_policy(self: Any, *arguments: Any, **options: Any) -> Any:
        response = page(self, *arguments, **options)
        response["Content-Security-Policy"] = POLICY
        return response

    return with_policy


class Browser:
    """Chromium in a thread of its own: playwright keeps an event loop there, which Django's ORM would refuse."""

    def __init__(self, executable: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self._thread.submit(self._start, executable).result()

    def _start(self, executable: str) -> None:
        from playwright.sync_api import sync_playwright

        self._play = sync_playwright().start()
        self._chromium = self._play.chromium.launch(executable_path=executable, args=FLAGS)

    def close(self) -> None:
        self._thread.submit(lambda: (self._chromium.close(), self._play.stop())).result()
        self._thread.shutdown()

    @contextmanager
    def page(self, url: str, user: User, **options: Any) -> Iterator[Tab]:
        """Open a tab in which the user is logged in."""
        client = Client()
        client.force_login(user)
        cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": url}
        tab = self._thread.submit(self._open, cookie, options).result()
        try:
            yield Tab(self, tab, url)
        finally:
            self.do(tab.context.close)

    def _open(self, cookie: dict[str, str], options: dict[str, Any]) -> Any:
        context = self._chromium.new_context(**options)
        context.add_cookies([cookie])
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.said = []
        page.on("console", lambda message: page.said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: (page.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        return page

    def do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return self._thread.submit(call, *arguments).result(60)


class Tab:
    """A page of the browser; its methods are playwright's."""

    def __init__(self, browser: Browser, page: Any, url: str) -> None:
        self._browser, self._page, self.url = browser, page, url

    def __call__(self, call: Callable[[Any], Any]) -> Any:
        return self._browser.do(call, self._page)

    def open(self, path: str) -> None:
        self(lambda page: page.goto(self.url + path))

    def text(self, selector: str) -> str:
        return str(self(lambda page: page.inner_text(selector)))

    def count(self, selector: str) -> int:
        return int(self(lambda page: page.locator(selector).count()))

    @property
    def errors(self) -> list[str]:
        return [text for text in self(lambda page: list(page.said)) if "favicon" not in text and "404" not in text]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    try:
        import playwright  # noqa: F401
    except ImportError:
        executable = None
    if executable is None:
        missing = "playwright or chromium is not here"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    chromium = Browser(executable)
    yield chromium
    chromium.close()


@pytest.fixture
def site(
    transactional_db: None, spec_of: Any, settings: Any, live_server: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return the address of a server whose locks are in PostgreSQL, and whose pages forbid all that is inline."""
    spec = spec_of("postgresql")
    settings.LOCKS = {"default": {**spec.locks, "HISTORY": timedelta(days=1)}}
    monkeypatch.setattr(BaseLeaseAdmin, "_page", strict_policy(BaseLeaseAdmin._page))
    running: list[None] = []

    def started(**kwargs: Any) -> None:
        running.append(None)

    def finished(**kwargs: Any) -> None:
        running.pop()

    signals.request_started.connect(started)
    signals.request_finished.connect(finished)  # after Django's own receiver, which closes the request's connections
    yield str(live_server.url)
    wait_for(lambda: not running)
    signals.request_started.disconnect(started)
    signals.request_finished.disconnect(finished)


@pytest.fixture
def ada(transactional_db: None) -> User:
    """A user who may do everything to locks."""
    return user_who_may("ada", "view_lease", "break_lease", "pause_lease")


def user_who_may(name: str, *permissions: str) -> User:
    user = User.objects.create(username=name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


@contextmanager
def process(site_settings: Any, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script in another process that uses the same locks."""
    entry = site_settings.LOCKS["default"]
    alias = entry["LOCATION"]
    others = {
        "INSTALLED_APPS": ["django_locks"],
        "DATABASES": {"default": {**connections.settings[alias], "TEST": {}}},
        "LOCKS": {"default": {"BACKEND": DATABASE, "HISTORY": 86400}},
    }
    setup = (
        "import django, sys, time; from django.conf import settings; settings.configure(**eval(sys.stdin.readline()))\n"
    )
    setup += "django.setup()\nfrom django_locks import LeaseLost, history, locks\n"
    command = [sys.executable, "-W", "ignore", "-c", setup + textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        child.stdin.write(repr(others) + "\n")
        child.stdin.flush()
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                child.kill()


def wait_for(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found
