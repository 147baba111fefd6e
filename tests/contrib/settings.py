"""Settings of the processes that the tests of this folder start: workers, consumers, beat.

From the environment: QUEUE_URL (Valkey), QUEUE_DATABASE (SQLite), QUEUE_APPS (more of INSTALLED_APPS), QUEUE_TTL.
"""

from __future__ import annotations

import os

SECRET_KEY = "only for these tests"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_locks", *filter(None, os.environ["QUEUE_APPS"].split(","))]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["QUEUE_DATABASE"],
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
LOCKS = {
    "default": {
        "BACKEND": "django_locks.stores.redis.RedisStore",
        "LOCATION": os.environ["QUEUE_URL"],
        "TTL": float(os.environ.get("QUEUE_TTL") or 10),
    }
}
RQ_QUEUES = {"default": {"URL": os.environ["QUEUE_URL"]}}
Q_CLUSTER = {"orm": "default", "workers": 1, "poll": 0.1, "timeout": 20, "retry": 60, "guard_cycle": 0.2}
TASKS = {"default": {"BACKEND": os.environ.get("QUEUE_TASKS") or "django.tasks.backends.immediate.ImmediateBackend"}}
