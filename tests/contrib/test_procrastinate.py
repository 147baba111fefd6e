"""procrastinate, with a worker on PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

procrastinate = pytest.importorskip("procrastinate", reason="pip install procrastinate[django]")

from procrastinate.testing import InMemoryConnector  # noqa: E402

from django_locks import SKIPPED, LockNotAcquired, locks, with_lock  # noqa: E402


@pytest.fixture
def connector(postgresql):
    settings = postgresql.settings
    return procrastinate.PsycopgConnector(
        conninfo="",
        kwargs={
            "host": settings["HOST"],
            "port": settings["PORT"],
            "user": settings.get("USER") or None,
            "password": settings.get("PASSWORD") or None,
            "dbname": settings["NAME"],
        },
    )


def test_tasks_run_under_their_locks(connector, busy):
    app = procrastinate.App(connector=connector)
    results = []

    @app.task(queue="locks", pass_context=True)
    @with_lock("procrastinate:{number}")
    def skipping(context, number):
        results.append((number, context.job.id is not None, locks.get(f"procrastinate:{number}") is not None))
        return True

    @app.task(queue="locks")
    @with_lock("procrastinate:async")
    async def asynchronous():
        results.append(("async", True, await locks.aget("procrastinate:async") is not None))

    @app.task(
        queue="locks", retry=procrastinate.RetryStrategy(max_attempts=3, wait=0, retry_exceptions={LockNotAcquired})
    )
    @with_lock("procrastinate:retried", on_busy="raise")
    def retried():
        results.append("retried")

    async def main():
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for number in (1, 2):
                await skipping.defer_async(number=number)
            await asynchronous.defer_async()
            failed = await retried.defer_async()
            await app.run_worker_async(queues=["locks"], wait=False, install_signal_handlers=False)
            return await app.job_manager.list_jobs_async(id=failed)

    busy("procrastinate:2")
    busy("procrastinate:retried")
    [failed] = asyncio.run(main())
    assert sorted(results, key=str) == [("async", True, True), (1, True, True)]
    assert failed.status == "failed"
    assert failed.attempts >= 3
    assert skipping(None, 2) is SKIPPED


def test_lock_on_top_of_a_task_is_refused_with_the_right_order():
    app = procrastinate.App(connector=InMemoryConnector())

    @app.task
    def task():
        pass

    with pytest.raises(TypeError, match=r"below @app\.task"):
        with_lock("x")(task)
