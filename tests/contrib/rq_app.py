"""RQ jobs: `job` hands the function on, so both orders mean the same."""

from __future__ import annotations

import os

import redis
from rq.decorators import job

from django_locks import with_lock

connection = redis.Redis.from_url(os.environ["QUEUE_URL"])


@with_lock("rq:above")
@job("jobs", connection=connection)
def above() -> str:
    return "ran"


@job("jobs", connection=connection)
@with_lock("rq:below")
def below() -> str:
    return "ran"
