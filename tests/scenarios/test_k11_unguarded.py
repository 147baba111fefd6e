"""K11: the body runs although the lock was not obtained."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management.base import BaseCommand

from django_locks import SKIPPED, LockNotAcquired, StoreUnavailable, locks, with_lock
from tests.scenarios.actors import held_elsewhere
from tests.servers.databases import free_port

REDIS = "django_locks.stores.redis.RedisStore"
DATABASE = "django_locks.stores.database.DatabaseStore"


@pytest.mark.usefixtures("any_store")
def test_body_does_not_run_while_somebody_else_holds_the_lock(name: str) -> None:
    """B040"""
    ran = []
    with held_elsewhere(name):
        with pytest.raises(LockNotAcquired), locks.lock(name, wait=0.2):
            ran.append("block")
        assert with_lock(name, wait=0.2)(ran.append)("skips") is SKIPPED
        with pytest.raises(LockNotAcquired):
            with_lock(name, wait=0.2, on_busy="raise")(ran.append)("raises")
    assert ran == []


@pytest.fixture(params=["redis", "postgresql", "mariadb", "sqlite"])
def store_down(request: pytest.FixtureRequest, settings: Any) -> None:
    port = str(free_port())
    if request.param == "redis":
        settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": f"redis://127.0.0.1:{port}"}}
        return
    connect = request.getfixturevalue("connect")
    where = {"NAME": "/no/such/folder/locks.sqlite3"} if request.param == "sqlite" else {"PORT": port}
    alias = connect(request.param, f"down_{request.param}", migrate=False, **where)
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}


@pytest.mark.usefixtures("store_down")
def test_body_does_not_run_while_the_store_is_down(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """B041"""
    ran = []

    @with_lock(name)
    class Command(BaseCommand):
        requires_system_checks: list[str] = []

        def handle(self, *args: Any, **options: Any) -> None:
            ran.append("command")

    with pytest.raises(StoreUnavailable) as caught, locks.lock(name, wait=5):
        ran.append("block")
    assert caught.value.__cause__ is not None
    with pytest.raises(StoreUnavailable):
        with_lock(name)(ran.append)("function")
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "nightly"])
    assert ended.value.code == 69
    assert name in capsys.readouterr().err
    assert ran == []
