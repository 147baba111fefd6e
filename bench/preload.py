"""Imported by the server that processes are forked from: sets up Django once for all of them."""

from __future__ import annotations

import json
import os

SETTINGS = "BENCH_SETTINGS"

if SETTINGS in os.environ:
    from bench.servers import configure

    configure(json.loads(os.environ[SETTINGS]))
    import redis.asyncio  # noqa: F401
    from django.db import connections

    import bench.contenders  # noqa: F401
    from django_locks.conf import entries

    for alias in entries:
        entries(alias)
    for alias in connections.settings:
        connections[alias]
