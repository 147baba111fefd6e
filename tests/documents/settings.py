"""The test project, as the pages of the documentation have it: with a history, and with what the examples speak of."""

from __future__ import annotations

import importlib.util
import sys
from datetime import timedelta

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS

DATABASES["leases"] = {**DATABASES["default"], "NAME": "leases.sqlite3"}
LOCKS = {
    alias: {"BACKEND": "django_locks.stores.database.DatabaseStore", "HISTORY": timedelta(days=30)}
    for alias in ("default", "reports")
}
if sys.argv[-1].endswith("schedulers.md"):  # they take a second to import
    INSTALLED_APPS.append("procrastinate.contrib.django")
    MIGRATION_MODULES = {"procrastinate": None}  # which are for PostgreSQL
    HUEY = {"huey_class": "huey.MemoryHuey", "immediate": False}
    RQ_QUEUES = {"default": {"URL": "redis://localhost:6379/0"}}  # nobody connects
    if importlib.util.find_spec("django_celery_beat"):
        INSTALLED_APPS.append("django_celery_beat")
