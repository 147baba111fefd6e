"""``locks run migrate -- migrate`` on an empty database, by four processes at once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from django.db import connections

from django_locks import StoreUnavailable
from django_locks.conf import entries
from django_locks.stores import preparation
from tests.cli import MANAGE, environment, manage
from tests.servers.aliases import registered
from tests.stores.databases import in_threads

PROCESSES = 4
MIGRATE = ["locks", "run", "migrate", "-w", "300", "--json", "--", "migrate", "-v", "0"]


@pytest.fixture
def empty_database(request, tmp_path, django_db_blocker):
    """Return a function that makes an empty database, and returns its entry in DATABASES and its URL."""
    with django_db_blocker.unblock():
        yield lambda kind: _sqlite(tmp_path) if kind == "sqlite" else _on_server(request.getfixturevalue(kind))


def _sqlite(folder):
    path = folder / "empty.sqlite3"
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}, f"sqlite:///{path}"


def _on_server(server):
    name = f"empty_{uuid.uuid4().hex}"
    with registered("maker", server.settings, migrate=False), connections["maker"].cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    entry = {**server.settings, "NAME": name}
    scheme = entry["ENGINE"].rpartition(".")[2]
    return entry, f"{scheme}://{quote(entry['USER'])}:@{entry['HOST']}:{entry['PORT']}/{name}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_four_processes_migrate_an_empty_database_one_after_the_other(kind, empty_database):
    env = environment(DATABASE_URL=empty_database(kind)[1])
    processes = [
        subprocess.Popen(
            [sys.executable, str(MANAGE), *MIGRATE],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    answers = [(process.communicate(timeout=240), process.returncode) for process in processes]
    said = [err for (_, err), _ in answers]
    assert [code for _, code in answers] == [0] * PROCESSES, said
    assert sum("was not ready for use: applied" in err for err in said) == 1
    fences = [json.loads(err.strip().splitlines()[-1])["fence"] for err in said]
    assert len(set(fences)) == PROCESSES
    assert manage(env, "migrate", "--check").returncode == 0
    assert manage(env, "locks", "doctor").returncode in (0, 1)


@pytest.fixture
def store_on(settings, empty_database):
    @contextmanager
    def store_on(kind):
        with registered("empty", empty_database(kind)[0], migrate=False) as alias:
            settings.LOCKS = {"default": {"LOCATION": alias, "BACKEND": "django_locks.stores.database.DatabaseStore"}}
            yield entries("default").store

    return store_on


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
class TestPrepare:
    def test_missing_table_is_made_once_and_recorded(self, kind, store_on):
        with store_on(kind) as store:
            assert "0001_initial" in store.prepare()
            assert store.prepare() == ""
            assert store.acquire("x", "a" * 32, 30, "me")
            from django.core.management import call_command

            call_command("migrate", "django_locks", database=store.location, verbosity=0)

    def test_of_many_at_once_one_is_in_there_at_a_time(self, kind, store_on, monkeypatch):
        inside, most, made = [], [], []
        migrate = preparation._migrate

        def slow(connection):
            inside.append(1)
            time.sleep(0.2)  # long enough for the others to come in, were they let
            most.append(len(inside))
            try:
                return migrate(connection)
            finally:
                inside.pop()

        monkeypatch.setattr(preparation, "_migrate", slow)
        with store_on(kind) as store:
            start = threading.Barrier(4)
            monkeypatch.setattr(type(store), "_has_table", lambda store: start.wait(30) < 0)
            in_threads(store, lambda owner: made.append(store.prepare()), list("abcd"))
        assert most == [1, 1, 1, 1]
        assert sum(bool(one) for one in made) == 1

    def test_connection_is_left_as_it_was(self, kind, store_on):
        with store_on(kind) as store:
            connection = connections[store.location]
            before = _state(connection)
            store.prepare()
            assert _state(connection) == before
            assert connection.get_autocommit()

    def test_in_a_transaction_nothing_is_made(self, kind, store_on):
        from django.db import transaction

        with store_on(kind) as store:
            with transaction.atomic(using=store.location):
                if kind == "sqlite":
                    with pytest.raises(transaction.TransactionManagementError):
                        store.prepare()
                else:
                    assert store.prepare() == ""


def test_table_that_cannot_be_made_is_unavailable(settings, tmp_path, django_db_blocker):
    path = tmp_path / "empty.sqlite3"
    path.touch()
    entry = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"file:{path}?mode=ro", "OPTIONS": {"uri": True}}
    with django_db_blocker.unblock(), registered("read_only", entry, migrate=False) as alias:
        settings.LOCKS = {"default": {"LOCATION": alias, "BACKEND": "django_locks.stores.database.DatabaseStore"}}
        with pytest.raises(StoreUnavailable, match="its table is missing, and could not be made: .*readonly"):
            entries("default").store.prepare()


def test_process_that_never_ends_its_migrations_is_not_waited_for(store_on, monkeypatch):
    monkeypatch.setattr(preparation, "PATIENCE", 0)
    with store_on("mariadb") as store, registered("other", connections["empty"].settings_dict, migrate=False):
        with preparation._by_named_lock(connections["other"]):
            with pytest.raises(StoreUnavailable, match="another process has been applying the migrations"):
                store.prepare()
        assert "0001_initial" in store.prepare()


def test_database_without_such_a_lock_is_left_to_migrate(store_on, monkeypatch):
    with store_on("postgresql") as store:
        monkeypatch.setattr(connections[store.location], "vendor", "another")
        assert store.prepare() == ""
        with pytest.raises(StoreUnavailable, match=r"manage\.py migrate"):
            store.get("x")


QUERIES = {
    "sqlite": ["PRAGMA foreign_keys", "PRAGMA busy_timeout"],
    "postgresql": [
        "SHOW lock_timeout",
        "SHOW transaction_isolation",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
    ],
    "mysql": ["SELECT @@foreign_key_checks", "SELECT @@autocommit"],
}


def _state(connection):
    with connection.cursor() as cursor:
        state = []
        for query in QUERIES[connection.vendor]:
            cursor.execute(query)
            state.append(cursor.fetchone()[0])
    return state, vars(connection).get("transaction_mode")
