"""A small project around django_locks, for the demo and the tests.

From the environment: DATABASE_URL (SQLite without), LOCKS_STORE (database, redis, memory), REDIS_URL, and LOCKS_TTL in
seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from testproject.databases import database

BASE_DIR = Path(__file__).resolve().parent

SECRET_KEY = "only for this test project"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "testproject.urls"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_locks",
    "testproject.jobs",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{BASE_DIR / 'db.sqlite3'}")}

STORES: dict[str, dict[str, Any]] = {
    "database": {"BACKEND": "django_locks.stores.database.DatabaseStore", "LOCATION": "default"},
    "redis": {
        "BACKEND": "django_locks.stores.redis.RedisStore",
        "LOCATION": os.environ.get("REDIS_URL") or "redis://127.0.0.1:6379/0",
    },
    "memory": {"BACKEND": "django_locks.stores.memory.MemoryStore"},
}
LOCKS_STORE = os.environ.get("LOCKS_STORE") or "database"
if LOCKS_STORE not in STORES:
    raise ValueError(f"LOCKS_STORE is {LOCKS_STORE!r}; it must be one of {', '.join(STORES)}.")
LOCKS = {"default": {**STORES[LOCKS_STORE], "TTL": float(os.environ.get("LOCKS_TTL") or 30)}}
