"""How fast the admin's page is with many locks: ``uv run bench/admin_page.py``.

A PostgreSQL server with a million rows of which a thousand are held, then a Valkey server with 100,000 leases; both are
started for it.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

ROWS, HELD, LEASES = 1_000_000, 1_000, 100_000
PREPARE = """
INSERT INTO django_locks_lease
  (name, owner, holder, fence, acquired_at, expires_at, released_at, outcome)
SELECT 'lock:' || lpad(n::text, 7, '0'), CASE WHEN n %% %(every)s = 0 THEN 'x' ELSE '' END, 'web-' || n %% 9, n,
  now - 60000000, now + CASE WHEN n %% %(every)s = 0 THEN 3600000000 ELSE -n END, now - n, 'released'
FROM generate_series(1, %(rows)s) AS n, (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) AS c
"""


def main() -> None:
    from tests.servers import databases
    from tests.servers.redis import valkey

    with databases.postgres() as server, valkey() as url:
        configure(server.settings)
        fill_table()
        client = log_in()
        set_locks({"default": {"BACKEND": "django_locks.stores.database.DatabaseStore", "HISTORY": 86400}})
        say(f"PostgreSQL, {ROWS:,} rows, {HELD:,} held")
        for label, query in [
            ("first page", ""),
            ("held", "?state=held"),
            ("free", "?state=free"),
            ("page 50", "?p=50"),
            ("facets", "?facets=1"),
            ("search", "?q=0999"),
        ]:
            measure(client, label, query)
        set_locks({"default": {"BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": url}})
        fill_redis()
        say(f"Valkey, {LEASES:,} leases")
        for label, query in [("first page", ""), ("page 500", "?p=500"), ("facets", "?facets=1"), ("search", "?q=99")]:
            measure(client, label, query)


def configure(database: dict[str, Any]) -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command

    from testproject import settings as project

    values = {key: getattr(project, key) for key in dir(project) if key.isupper()}
    settings.configure(**{**values, "DATABASES": {"default": database}, "DEBUG": False})
    django.setup()
    call_command("migrate", verbosity=0)


def set_locks(locks: dict[str, Any]) -> None:
    from django.conf import settings
    from django.core.signals import setting_changed

    settings.LOCKS = locks
    setting_changed.send(None, setting="LOCKS", value=locks, enter=True)


def fill_table() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(PREPARE, {"rows": ROWS, "every": ROWS // HELD})
        cursor.execute("VACUUM ANALYZE django_locks_lease")


def fill_redis() -> None:
    from django_locks.conf import entries

    store = entries("default").store
    for number in range(LEASES):
        store.acquire(f"lock:{number:07}", uuid.uuid4().hex, 3600, "web-1:7:MainThread")


def log_in() -> Any:
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    return client


def measure(client: Any, label: str, query: str) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    times, queries = [], 0
    for _ in range(7):
        with CaptureQueriesContext(connection) as captured:
            start = time.perf_counter()
            response = client.get(f"/admin/django_locks/lease/{query}")
            times.append((time.perf_counter() - start) * 1000)
        assert response.status_code == 200
        queries = len(captured)
    say(f"  {label:12} median {statistics.median(times):6.0f} ms, best {min(times):6.0f} ms, {queries} queries")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
