"""Make the pictures of the admin's pages: ``uv run docs/screenshots.py``, or ``uv run --with django-unfold docs/screenshots.py
--look unfold --to /tmp/pictures``, likewise ``django-jazzmin`` and ``django-grappelli``.

Starts a database, a Valkey server and a web server of its own, and drives Chromium.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

LOOKS = {"stock": [], "unfold": ["unfold"], "jazzmin": ["jazzmin"], "grappelli": ["grappelli"]}
SETTINGS = """
from datetime import timedelta
from testproject.settings import *
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}}}}}
MONTH = timedelta(days=30)
LOCKS = {{
    "default": {{"BACKEND": "django_locks.stores.database.DatabaseStore", "HISTORY": MONTH}},
    "queue": {{"BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": {redis!r}, "HISTORY": MONTH}},
}}
INSTALLED_APPS = {apps!r} + INSTALLED_APPS
LANGUAGE_CODE = {language!r}
MIDDLEWARE.insert(2, "django.middleware.locale.LocaleMiddleware") if {language!r} != "en" else None
"""
IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--look", choices=LOOKS, default="stock")
    arguments.add_argument("--language", default="en")
    arguments.add_argument("--to", type=Path, default=IMAGES)
    options = arguments.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare(stack, folder, options)
        fill(stack)
        url = stack.enter_context(web_server(folder))
        take(url, session(), options)


def prepare(stack: ExitStack, folder: Path, options: Any) -> None:
    from tests.servers.redis import valkey

    text = SETTINGS.format(
        database=str(folder / "db.sqlite3"),
        redis=stack.enter_context(valkey()),
        apps=LOOKS[options.look],
        language=options.language,
    )
    (folder / "picture_settings.py").write_text(text)
    sys.path.insert(0, str(folder))
    os.environ |= {"DJANGO_SETTINGS_MODULE": "picture_settings", "PYTHONPATH": f"{folder}:{ROOT}"}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def fill(stack: ExitStack) -> None:
    """Take locks as several hosts would, and remember runs of the last night."""
    from django_locks import clock, locks
    from django_locks.conf import entries
    from django_locks.models import Lease, Run, Skips

    now, chance = clock.wall(), random.Random(7)
    for number, (name, minutes, outcome) in enumerate(
        [("cron:backup", 47, "failed"), ("cron:clearsessions", 2, "released"), ("cron:invoices", 12, "broken")]
    ):
        ended = now - timedelta(minutes=17 + 31 * number)
        Lease.objects.create(
            name=name,
            holder=f"web-{number + 1}:7:MainThread",
            fence=1_796_000_000_000_000 + number,
            acquired_at=ended - timedelta(minutes=minutes),
            expires_at=ended,
            released_at=ended,
            outcome=outcome,
        )
    hosts = ["web-1", "web-2", "web-3"]
    outcomes = ["released"] * 16 + ["failed", "lost", "expired", "broken"]
    start = now - timedelta(hours=9)
    for number in range(24):
        took = timedelta(minutes=chance.uniform(4, 16))
        outcome = chance.choice(outcomes)
        Run.objects.create(
            name="cron:nightly",
            store="default",
            holder=f"{chance.choice(hosts)}:{chance.randrange(100, 999)}:MainThread",
            fence=1000 + number,
            started=start,
            ended=start + took,
            outcome=outcome,
            error="django.db.utils.OperationalError" if outcome == "failed" else "",
        )
        start += took + timedelta(minutes=chance.uniform(6, 14))
    Skips.objects.create(
        name="cron:nightly", store="default", count=23, hour=now.replace(minute=0, second=0, microsecond=0)
    )
    leases = [
        ("default", "cron:nightly", "web-2:4711:MainThread", 30.0),
        ("default", "import:tenant-7", "worker-1:38:Thread-2", 30.0),
        ("default", "report:monthly:größe/2026", "worker-2:51:MainThread", 300.0),
        ("queue", "invoice:42", "web-1:7:uvicorn", 30.0),
        ("queue", "invoice:43", "web-3:7:uvicorn", 30.0),
    ]
    held = []
    for number, (alias, name, holder, ttl) in enumerate(leases):
        fence = entries(alias).store.acquire(name, f"owner {number}", ttl, holder)
        Run.objects.create(name=name, store=alias, holder=holder, fence=fence, started=now)
        held.append((alias, (name, f"owner {number}", ttl)))
    Lease.objects.exclude(owner="").exclude(name="import:tenant-7").update(
        acquired_at=now - timedelta(minutes=7, seconds=12)
    )
    Run.objects.filter(ended=None).update(started=now - timedelta(minutes=7, seconds=12))
    locks.pause("cron:reindex", 7200, note="ada: disk of search-1 is replaced")
    entries("default").store.acquire("tick:5min", "tick", 60, "web-1:7:MainThread")
    entries("default").store.release("tick:5min", "tick", hold_for=200)
    over = threading.Event()
    renewer = threading.Thread(target=renew, args=(over, held), daemon=True)
    renewer.start()
    stack.callback(renewer.join)
    stack.callback(over.set)


def renew(over: threading.Event, held: list[tuple[str, Any]]) -> None:
    from django_locks.conf import entries

    while True:
        for alias, claim in held:
            if claim[0] != "import:tenant-7":  # its holder hangs
                entries(alias).store.renew([claim])
        if over.wait(5):
            return


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    from tests.servers.redis import free_port

    address = f"127.0.0.1:{free_port()}"
    manage = [sys.executable, "-m", "django", "runserver", "--noreload", address]
    process = subprocess.Popen(manage, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    try:
        time.sleep(4)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait()


def session() -> str:
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore

    ada = User.objects.create_superuser("ada")
    store = SessionStore()
    store[SESSION_KEY], store[HASH_SESSION_KEY] = str(ada.pk), ada.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store.save()
    return str(store.session_key)


def take(url: str, session: str, options: Any) -> None:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # playwright keeps a loop in this thread
    from playwright.sync_api import sync_playwright

    from django_locks.places import key_of

    base = f"{url}/admin/django_locks/lease/"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            for size, width in (("", 1280), ("-narrow", 400)):
                if size and (scheme == "dark" or options.to == IMAGES):
                    continue
                context = browser.new_context(
                    color_scheme=scheme, viewport={"width": width, "height": 760}, locale=options.language
                )
                context.add_cookies([{"name": "sessionid", "value": session, "url": url}])
                page = context.new_page()

                def shoot(name: str, page: Any = page, scheme: str = scheme, size: str = size) -> None:
                    page.wait_for_timeout(600)
                    page.screenshot(path=options.to / f"{name}{size}-{scheme}.png", full_page=True)

                page.goto(base)
                shoot("list")
                page.goto(f"{base}{key_of('default', 'cron:nightly')}/change/")
                shoot("lock")
                page.goto(base)
                page.check(f"#pick-{key_of('default', 'cron:nightly')}")
                page.click("button[value=break_lease]")
                shoot("break")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
