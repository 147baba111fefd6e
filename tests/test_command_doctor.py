"""``manage.py locks doctor``, and what the stores find out about themselves."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connections

from django_locks.conf import entries
from django_locks.findings import FAIL, OK, WARN
from django_locks.management.probe import NAME, Measured, measure, percentile
from django_locks.management.subcommands import doctor
from django_locks.stores import database_findings
from django_locks.stores.base import BaseStore
from django_locks.stores.redis_findings import findings
from tests.cli import end
from tests.conftest import DATABASE
from tests.faults import patched

HEALTHY = {
    "redis_version": "7.4.1",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "maxmemory": 0,
    "aof_enabled": 1,
    "appendfsync": "everysec",
    "connected_slaves": 0,
}


class SilentStore(BaseStore):
    """One of somebody else's, which has nothing to tell of itself."""


def found(store, topic):
    return next(finding for finding in store.diagnose() if finding.topic == topic)


class TestCommand:
    def test_memory_says_it_excludes_nobody(self, two_stores, settings):
        del settings.LOCKS["other"]
        ended = end("doctor")
        assert "no other process, replica or command is excluded" in ended.out
        assert ended.code == 2, "and the deploy check of a memory default is an error"

    def test_every_store_is_examined_unless_one_is_named(self, two_stores):
        assert [store["store"] for store in end("doctor", "--json").json["stores"]] == ["default", "other"]
        assert [store["store"] for store in end("doctor", "--json", "--using", "other").json["stores"]] == ["other"]

    @pytest.mark.parametrize(
        "wrong", [{"default": {"TTL": -1}}, {"default": {"BACKEND": "no.such.Store"}}, {}, "nonsense"]
    )
    def test_wrong_settings_are_findings(self, wrong, settings):
        settings.LOCKS = wrong
        ended = end("doctor", "--json")
        assert ended.code == 2
        assert ended.json["settings"][0]["level"] == FAIL

    def test_store_with_nothing_to_tell_is_fine(self):
        assert list(SilentStore("default").diagnose()) == []

    def test_held_probe_is_a_warning_and_is_left_alone(self, two_stores, held):
        guard = held(NAME)
        rounds = [f for f in end("doctor", "--json").json["stores"][0]["findings"] if f["topic"] == "round"]
        assert [finding["level"] for finding in rounds] == [WARN]
        guard.check()


def test_percentile():
    assert (percentile([3.0], 0.99), percentile([1.0, 2.0, 3.0, 4.0], 0.5)) == (3.0, 3.0)


def test_clock_difference_is_that_of_the_host(spec_of, settings, monkeypatch):
    from datetime import timedelta

    from django_locks import clock

    settings.LOCKS = {"default": spec_of("sqlite").locks}
    store, wall = entries("default").store, clock.wall
    monkeypatch.setattr("django_locks.clock.wall", lambda: wall() + timedelta(seconds=90))
    measured = measure(store, "")
    assert abs(measured.ahead - 90) < 1 + measured.doubt


class TestRedis:
    def test_healthy_server_is_fine(self):
        assert {finding.level for finding in findings({"": HEALTHY})} == {OK}

    @pytest.mark.parametrize(
        ("changes", "topic", "level"),
        [
            ({"role": "slave"}, "role", FAIL),
            ({"maxmemory_policy": "allkeys-lru", "maxmemory": 100}, "eviction", FAIL),
            ({"maxmemory_policy": "volatile-ttl"}, "eviction", WARN),
            ({"aof_enabled": 0, "save": "3600 1"}, "persistence", WARN),
            ({"aof_enabled": 0, "save": ""}, "persistence", WARN),
            ({"appendfsync": "no"}, "persistence", WARN),
        ],
    )
    def test_what_endangers_leases_is_found(self, changes, topic, level):
        levels = {finding.topic: finding.level for finding in findings({"": {**HEALTHY, **changes}})}
        assert levels == {**dict.fromkeys(levels, OK), topic: level}

    @pytest.mark.parametrize(("count", "text"), [(1, "1 replica: "), (2, "2 replicas: ")])
    def test_replicas_are_counted(self, count, text):
        told = [
            finding for finding in findings({"a:1": {**HEALTHY, "connected_slaves": count}}) if finding.value == count
        ]
        assert [(finding.topic, finding.level) for finding in told] == [("replicas", OK)]
        assert told[0].text.startswith(f"a:1: {text}a fail-over may forget")

    def test_every_primary_of_a_cluster_is_examined(self, spec_of, settings):
        settings.LOCKS = {"default": spec_of("cluster").locks}
        versions = [finding for finding in entries("default").store.diagnose() if finding.topic == "version"]
        assert len(versions) == 3
        assert all("Valkey" in finding.text for finding in versions)

    def test_eviction_policy_is_read_from_the_server(self, spec_of, settings):
        import redis

        spec = spec_of("valkey")
        settings.LOCKS = {"default": spec.locks}
        with redis.Redis.from_url(spec.locks["LOCATION"]) as client:
            client.config_set("maxmemory-policy", "volatile-lru")
            try:
                assert found(entries("default").store, "eviction").level == WARN
            finally:
                client.config_set("maxmemory-policy", "noeviction")


class TestDatabase:
    def test_missing_table_fails_and_says_migrate(self, connect, settings, tmp_path):
        alias = connect("sqlite", "bare", migrate=False, NAME=str(tmp_path / "bare.sqlite3"))
        settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}
        ended = end("doctor", "--json")
        table = next(f for f in ended.json["stores"][0]["findings"] if f["topic"] == "table")
        assert (ended.code, table["level"], "migrate" in table["hint"]) == (2, FAIL, True)

    @pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
    def test_server_tells_version_isolation_and_durability(self, kind, connect, settings):
        settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": connect(kind)}}
        findings = {finding.topic: finding for finding in entries("default").store.diagnose()}
        assert findings["isolation"].value == "read committed"
        assert findings["durability"].level == WARN  # the servers of the tests don't flush
        assert ("PostgreSQL" if kind == "postgresql" else "MariaDB") in findings["version"].text
        assert "pooler" not in findings

    def test_serializable_is_a_warning(self, connect, settings):
        alias = connect("postgresql", "strict", OPTIONS={"options": "-c default_transaction_isolation=serializable"})
        settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}
        assert found(entries("default").store, "isolation").level == WARN

    def test_many_stale_rows_are_a_warning(self):
        assert database_findings.stale_rows(database_findings.MANY).level == WARN
        assert database_findings.stale_rows(1).text.startswith("1 name free")

    def test_pooler_makes_up_its_process(self, connect, monkeypatch):
        alias = connect("postgresql")
        monkeypatch.setattr(database_findings, "_process_of", lambda connection: 1)
        topics = [finding.topic for finding in database_findings.findings(connections[alias])]
        assert "pooler" in topics

    def test_other_vendor_is_used_through_the_orm(self, connect, monkeypatch):
        connection = connections[connect("sqlite")]
        monkeypatch.setattr(connection, "vendor", "oracle")
        table, version = database_findings.findings(connection)
        assert (table.topic, table.level) == ("table", OK)
        assert (version.level, version.text) == (OK, "SQLite, through the ORM")

    def test_database_that_does_not_tell_its_settings_is_a_warning(self, connect, settings):
        alias = connect("postgresql")
        settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}

        def refuse(execute, sql, *args):
            if "current_setting" in sql:
                raise OperationalError("permission denied")
            return execute(sql, *args)

        with connections[alias].execute_wrapper(refuse):
            levels = {finding.topic: finding.level for finding in entries("default").store.diagnose()}
        assert levels == {"table": OK, "settings": WARN, "stale rows": OK}

    def test_standby_fails(self, connect, monkeypatch):
        connection = connections[connect("postgresql")]
        answer = ("16.1", "read committed", True, "on", "on", database_findings._process_of(connection))
        monkeypatch.setattr(database_findings, "_row", lambda connection, sql: answer)
        told = {finding.topic: finding for finding in database_findings._postgresql(connection)}
        assert (told["role"].level, told["durability"].level) == (FAIL, OK)
        assert "primary" in told["role"].hint

    @pytest.mark.parametrize(
        ("spoil", "mend", "topic"),
        [
            ("SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", "role"),
            (
                "ALTER TABLE django_locks_lease ENGINE = Aria",
                "ALTER TABLE django_locks_lease ENGINE = InnoDB",
                "engine",
            ),
        ],
    )
    def test_server_that_cannot_hold_leases_fails(self, spoil, mend, topic, connect, settings):
        alias = connect("mariadb")
        settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias}}
        with connections[alias].cursor() as cursor:
            cursor.execute(spoil)
            try:
                wrong = found(entries("default").store, topic)
            finally:
                cursor.execute(mend)
        assert (wrong.level, bool(wrong.hint)) == (FAIL, True)
        assert all(finding.topic != topic for finding in entries("default").store.diagnose())


class TestMeasured:
    @pytest.fixture(autouse=True)
    def _sqlite(self, spec_of, settings):
        settings.LOCKS = {"default": spec_of("sqlite").locks}

    def findings(self):
        return {finding["topic"]: finding for finding in end("doctor", "--json").json["stores"][0]["findings"]}

    @pytest.mark.parametrize(("verb", "answer"), [("renew", set()), ("release", False), ("get", None)])
    def test_store_that_does_not_keep_its_leases_fails(self, verb, answer):
        def lie(original, *args):
            original(*args)
            return answer

        with patched(entries("default").store, verb, lie):
            found = self.findings()
        assert (found["round"]["level"], "do not trust this store" in found["round"]["text"]) == (FAIL, True)
        assert "clock" not in found

    def test_slow_store_is_measured_no_longer_than_some_seconds(self, monkeypatch):
        monkeypatch.setattr("django_locks.management.probe.LONGEST", 0.0)
        latencies = measure(entries("default").store, "").latencies
        assert {verb: len(times) for verb, times in latencies.items()} == {"acquire": 1, "renew": 1, "release": 1}

    def test_slow_verb_and_clock_that_is_apart_are_warnings(self, monkeypatch):
        latencies = {"acquire": [0.01, 2.0], "renew": [0.01], "release": [0.01]}
        monkeypatch.setattr(doctor, "measure", lambda store, prefix: Measured(latencies, -90.0, 0.5))
        found = self.findings()
        levels = {topic: found[topic]["level"] for topic in ("acquire", "renew", "release", "clock")}
        assert levels == {"acquire": WARN, "renew": OK, "release": OK, "clock": WARN}
        assert "p99 2000.0 ms: slow for this TTL" in found["acquire"]["text"]
        assert "90.000 s behind the store's (± 0.500 s)" in found["clock"]["text"]
        assert (found["acquire"]["value"]["p99_ms"], found["clock"]["value"]) == (2000, -90)
