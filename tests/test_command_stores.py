"""Every subcommand of ``manage.py locks`` over real stores, with its exit codes and its JSON."""

from __future__ import annotations

import json
import uuid
from contextlib import nullcontext
from datetime import timedelta

import pytest

from django_locks import clock, history, locks
from django_locks.conf import entries
from django_locks.management.subcommands import SUBCOMMANDS
from django_locks.models import Fence
from tests.cli import end
from tests.servers.aliases import registered

FREE, USAGE, UNREACHABLE, BUSY = 1, 2, 69, 75

LEASE = {"name", "store", "holder", "fence", "acquired_at", "expires_at", "remaining", "state"}
RESULT = {"done", "exit_code", "message"}


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def store(request, spec_of, settings):
    settings.LOCKS = {"default": {**spec_of(request.param).locks, "HOLDER": "web-1"}}
    for lease in locks.leases():
        locks.force_release(lease.name)
    yield request.param
    for lease in locks.leases():
        locks.force_release(lease.name)


class TestHistory:
    @pytest.fixture(autouse=True)
    def _kept(self, store, settings):
        settings.LOCKS = {"default": {**settings.LOCKS["default"], "HISTORY": timedelta(days=1), "KEY_PREFIX": "t"}}

    @pytest.mark.django_db
    def test_runs_are_shown_with_how_they_ended(self, held):
        name = uuid.uuid4().hex
        assert end("history", name).code == FREE
        assert end("run", name, "--", "true").code == 0
        assert end("run", name, "--", "false").code == 1
        held(name)
        history.flush()
        ended = end("history", name, "--json")
        assert (ended.code, [run["outcome"] for run in ended.json]) == (0, ["running", "failed", "released"])
        assert [run["name"] for run in ended.json] == [name] * 3
        assert [run["seconds"] is None for run in ended.json] == [True, False, False]
        assert len(end("history", "--last", "2", "--json").json) == 2
        assert "released" in end("history", name).out

    @pytest.mark.django_db
    def test_without_history_it_says_what_to_set(self, settings):
        settings.LOCKS = {"default": {**settings.LOCKS["default"], "HISTORY": None}}
        ended = end("history", uuid.uuid4().hex)
        assert (ended.code, "set HISTORY in LOCKS" in ended.out) == (FREE, True)


@pytest.mark.usefixtures("store")
class TestEverySubcommand:
    def test_list_and_show(self, held):
        assert end("list").out == "No lock is held (store 'default').\n"
        guard = held("cron:nightly", ttl=60)
        assert "cron:nightly  held" in end("list").out
        [lease] = end("list", "--json").json
        assert (set(lease), lease["fence"]) == (LEASE, guard.fence)
        assert end("show", "cron:nightly").code == 0
        assert end("show", "cron:nightly", "--json").json["holder"] == "web-1"
        assert end("show", "other", "--json")[:2] == (FREE, "null\n")

    def test_run(self, held):
        assert end("run", "x", "--", "true").code == 0
        assert end("run", "x", "--", "sh", "-c", "exit 3").code == 3
        held("x")
        ended = end("run", "x", "--json", "--", "true")
        said = json.loads(next(line for line in ended.err.splitlines() if line.startswith("{")))
        assert (ended.code, ended.out, said["exit_code"], said["done"]) == (BUSY, "", BUSY, False)

    def test_release(self, held):
        assert end("release", "x", "--force", "--yes").code == FREE
        guard = held("x")
        assert end("release", "x").code == USAGE
        ended = end("release", "x", "--force", "--yes", "--json")
        assert (ended.code, set(ended.json)) == (0, RESULT | {"name", "store", "lease"})
        assert (ended.json["done"], ended.json["lease"]["fence"]) == (True, guard.fence)
        assert guard.release() is False

    def test_extend(self, held):
        assert end("extend", "x", "--ttl", "10m").code == FREE
        held("x", ttl=60)
        ended = end("extend", "x", "--ttl", "10m", "--json")
        assert (ended.code, 595 < ended.json["lease"]["remaining"] <= 600) == (0, True)
        assert end("extend", "x", "--ttl", "5m").code == USAGE
        assert locks.get("x").remaining > 590

    def test_pause_and_resume(self, held):
        assert end("resume", "x").code == FREE
        guard = held("x")
        busy = end("pause", "x", "--for", "2h")
        assert (busy.code, "is held by web-1" in busy.err) == (BUSY, True)
        guard.release()
        assert end("pause", "x", "--for", "2h", "--note", "upgrade, ask Ann").code == 0
        assert end("show", "x", "--json").json["state"] == "paused"
        refused = end("run", "x", "--", "true")
        assert (refused.code, "upgrade, ask Ann" in refused.err) == (BUSY, True)
        assert end("resume", "x", "--json").json["done"] is True
        assert end("run", "x", "--", "true").code == 0

    def test_pause_waits_for_the_holder(self):
        locks.acquire("x", at_least=0.5).release()
        assert end("pause", "x", "--for", "1m", "-w", "20").code == 0

    def test_wait(self, held):
        assert end("wait", "x").code == 0
        guard = held("x", ttl=60)
        ended = end("wait", "x", "-w", "300ms", "--json")
        assert (ended.code, ended.json["lease"]["fence"]) == (BUSY, guard.fence)
        guard.release()
        locks.acquire("x", at_least=0.5).release()
        assert end("wait", "x", "-w", "20").code == 0

    @pytest.mark.django_db
    def test_prune(self, store):
        locks.acquire("x").release()
        expected = 0 if store == "redis" else 1
        assert end("prune", "--older-than", "1h", "--dry-run", "--json").json["names"] == 0
        locks.acquire("y", ttl=60).detach()
        ended = end("prune", "--older-than", "1ms", "--dry-run", "--json")
        assert (ended.json["names"] >= expected, ended.json["dry_run"]) == (True, True)
        assert end("prune", "--older-than", "1ms", "--json").json["names"] == ended.json["names"]
        assert end("prune", "--older-than", "1ms", "--json").json["names"] == 0
        assert locks.get("y")

    @pytest.mark.django_db
    def test_prune_forgets_the_fences_of_transactions_too(self):
        alias = entries("default").store.database_alias or "default"
        Fence.objects.using(alias).all().delete()
        for name, age in (("old", 2 * 86400), ("older", 3 * 86400), ("young", 0)):
            Fence.objects.using(alias).create(name=name, fence=int((clock.epoch() - age) * 1_000_000))
        ended = end("prune", "--older-than", "1d", "--dry-run")
        assert "and 2 fences of guard.atomic() (store 'default')" in ended.out
        assert end("prune", "--older-than", "60h", "--json").json["fences"] == 1
        assert "and 1 fence of guard.atomic()" in end("prune", "--older-than", "1d").out
        assert [fence.name for fence in Fence.objects.using(alias).all()] == ["young"]

    def test_doctor(self, store):
        ended = end("doctor", "--json")
        report = ended.json
        [examined] = report["stores"]
        levels = {finding["topic"]: finding["level"] for finding in examined["findings"]}
        assert {levels[topic] for topic in ("reachable", "acquire", "renew", "release", "clock")} == {"ok"}
        # The servers of the tests don't flush what they write.
        assert (ended.code, report["status"]) == {"sqlite": (0, "ok")}.get(store, (1, "warn"))
        assert {"postgresql": "durability", "redis": "persistence"}.get(store, "table") in levels
        assert ended.code == report["exit_code"]
        human = end("doctor")
        assert (human.code, "p99" in human.out) == (ended.code, True)
        assert entries("default").store.get("django_locks:doctor") is None

    def test_owner_is_never_printed(self, held):
        guard = held("x", ttl=60)
        for command in ("list", "show x", "extend x --ttl 2m", "release x", "pause x --for 1m", "wait x -w 0"):
            for form in ([], ["--json"]):
                ended = end(*command.split(), *form)
                assert guard.owner not in ended.out + ended.err


UNREACHABLE_STORES = {
    "sqlite": ("default_down", {"ENGINE": "django.db.backends.sqlite3", "NAME": "/no/such/folder/db.sqlite3"}),
    "postgresql": (
        "default_down",
        {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "USER": "x", "HOST": "127.0.0.1", "PORT": "1"},
    ),
    "redis": ("redis://127.0.0.1:1", None),
}
ARGUMENTS = {
    **{name: ["x"] for name in ("show", "release", "resume", "wait")},
    "extend": ["x", "--ttl", "1m"],
    "pause": ["x", "--for", "1m"],
    "prune": ["--older-than", "1d"],
    "run": ["x", "--", "true"],
}


@pytest.mark.parametrize("kind", UNREACHABLE_STORES)
def test_unreachable_store_ends_with_69_everywhere_and_the_doctor_fails(kind, settings, django_db_blocker):
    location, database = UNREACHABLE_STORES[kind]
    backend = "redis.RedisStore" if database is None else "database.DatabaseStore"
    settings.LOCKS = {"default": {"BACKEND": f"django_locks.stores.{backend}", "LOCATION": location}}
    with django_db_blocker.unblock(), registered_or_nothing(location, database):
        for name in SUBCOMMANDS:
            kept_elsewhere = kind == "redis" and name == "history"
            if name not in ("doctor", "watch") and not kept_elsewhere:
                ended = end(name, *ARGUMENTS.get(name, []))
                assert (name, ended.code, "Traceback" in ended.err) == (name, UNREACHABLE, False)
        ended = end("doctor", "--json")
        assert (ended.code, ended.json["stores"][0]["findings"][-1]["topic"]) == (2, "reachable")


def registered_or_nothing(alias, database):
    return nullcontext() if database is None else registered(alias, database, migrate=False)
