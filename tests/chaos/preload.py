"""What workers have in common. Imported by multiprocessing's fork server alone: a worker then starts at once."""

import signal

from tests.chaos.worker import STEP_CLOCK
from tests.crew import Spec

signal.signal(STEP_CLOCK, signal.SIG_IGN)  # else it would end a worker that is not ready
Spec({}).apply()

from django.db.utils import load_backend  # noqa: E402

from django_locks.stores import database, redis, redis_client  # noqa: E402, F401

for name in ("postgresql", "mysql", "sqlite3"):
    load_backend(f"django.db.backends.{name}")
