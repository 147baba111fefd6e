"""What workers have in common. Imported by multiprocessing's fork server alone: a worker then starts at once."""

from tests.crew import Spec

Spec({}).apply()

from django_locks import locks  # noqa: E402, F401
from django_locks.stores import database, redis, redis_client  # noqa: E402, F401
from tests.chaos import worker  # noqa: E402, F401
