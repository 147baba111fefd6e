"""Prometheus: what a scrape says of locks that other processes took."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="pip install prometheus-client")

from django.db import OperationalError, connections
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_locks import LeaseLost, clock, history, locks, with_lock
from django_locks.contrib.prometheus import FAMILIES, LocksCollector
from django_locks.models import Run
from django_locks.testing import hold, lose, movable_clock, unavailable
from django_locks.values import Name
from tests.conftest import MEMORY

DOCS = Path(__file__).parent.parent.parent / "docs"
MONTH = timedelta(days=30)
JOB = ("default", "import:{tenant}")


def scrape(**options):
    """Return what a scrape says: name of the metric without its prefix, and values of the labels, to value."""
    assert history.flush()
    registry = CollectorRegistry()
    registry.register(LocksCollector(**options))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name.removeprefix("django_locks_"), *(sample.labels[of] for of in LABELS if of in sample.labels)): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


LABELS = ("store", "template", "outcome")


@pytest.fixture
def kept(settings, spec_of, request):
    kind = getattr(request, "param", "memory")
    settings.LOCKS = {"default": {**spec_of(kind).locks, "HISTORY": MONTH}}
    return kind


@with_lock("import:{tenant}")
def import_tenant(tenant, work=lambda: "done"):
    return work()


pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("kept", ["memory", "valkey", "sqlite", "postgresql", "mariadb"], indirect=True)
def test_scrape_tells_of_every_kind_of_end_by_template(kept):
    before = clock.wall().timestamp()
    for tenant in ("a", "b"):
        import_tenant(tenant)
    with pytest.raises(ZeroDivisionError):
        import_tenant("c", lambda: 1 / 0)
    with hold("import:d"):
        import_tenant("d")
    told = scrape()
    assert told["store_up", "default"] == 1
    assert told["holds", *JOB, "released"] == 2
    assert told["holds", *JOB, "failed"] == 1
    assert told["skips", *JOB] == 1
    assert told["lost", *JOB] == 0
    assert told["held", *JOB] == 0
    assert before - 1 <= told["last_success_timestamp_seconds", *JOB] <= clock.wall().timestamp()
    for name in ("hold_seconds_avg", "hold_seconds_max"):
        assert 0 <= told[name, *JOB, "released"] < 10
    for name in ("wait_seconds_avg", "wait_seconds_max"):
        assert 0 < told[name, *JOB] < 10


def test_what_is_held_now_is_told_by_template_and_age(kept):
    def work():
        with locks.lock("plain"):
            return scrape()

    with hold("other"):
        told = import_tenant("a", work)
    assert told["held", *JOB] == 1
    assert told["held", "default", ""] == 2
    assert 0 <= told["held_seconds_max", *JOB] < 10
    assert ("last_success_timestamp_seconds", *JOB) not in told


def test_age_of_a_held_lock_counts_over_its_renewals(kept):
    with movable_clock() as moved:
        guard = locks.acquire("a", ttl=100)
        for _ in range(3):
            moved.advance(50)
            guard.extend()
        assert 149 <= scrape()["held_seconds_max", "default", ""] <= 160
        guard.release()


def test_loss_is_told(kept):
    with pytest.raises(LeaseLost), locks.lock(Name("import:a", "import:{tenant}")) as guard:
        lose(guard)
    assert scrape()["lost", *JOB] == 1


def test_ends_before_the_window_are_told_no_more_but_for_the_last_success(kept):
    import_tenant("a")
    assert history.flush()
    long_ago = clock.wall() - timedelta(hours=2)
    Run.objects.update(started=long_ago, ended=long_ago)
    told = scrape()
    assert ("holds", *JOB, "released") not in told
    assert told["last_success_timestamp_seconds", *JOB] == pytest.approx(long_ago.timestamp(), abs=0.01)
    assert scrape(window=timedelta(hours=3))["holds", *JOB, "released"] == 1


def test_last_success_is_the_newest_of_each_template(kept):
    @with_lock("other")
    def other():
        pass

    import_tenant("a")
    other()
    assert history.flush()
    earlier = clock.wall() - timedelta(days=1)
    Run.objects.update(ended=earlier)
    import_tenant("b")
    told = scrape()
    assert told["last_success_timestamp_seconds", "default", "other"] == pytest.approx(earlier.timestamp(), abs=0.01)
    assert told["last_success_timestamp_seconds", *JOB] > earlier.timestamp() + 3600


def test_store_that_is_down_is_told_and_hides_no_other(settings):
    settings.LOCKS = {
        "default": {"BACKEND": MEMORY, "LOCATION": "a", "HISTORY": MONTH},
        "other": {"BACKEND": MEMORY, "LOCATION": "b"},
        "wrong": {"BACKEND": "nowhere.Store"},
    }
    with locks.using("other").lock("x"), unavailable():
        told = scrape()
    assert (told["store_up", "default"], told["store_up", "other"], told["store_up", "wrong"]) == (0, 1, 0)
    assert told["held", "other", ""] == 1


def test_history_that_cannot_be_read_hides_neither_the_store_nor_what_is_held(kept, monkeypatch, caplog):
    def runs(alias):
        raise OperationalError("no such table: django_locks_run")

    monkeypatch.setattr(history, "runs", runs)
    with locks.lock(Name("import:a", "import:{tenant}")):
        told = scrape()
    assert (told["store_up", "default"], told["held", "default", ""]) == (1, 1)
    assert not any(key[0] in ("holds", "skips", "lost") for key in told)
    assert "No metrics of the history of 'default': no such table" in caplog.text


def test_without_history_there_is_only_what_is_held(settings):
    settings.LOCKS = {"default": {"BACKEND": MEMORY, "LOCATION": "c"}}
    import_tenant("a")
    with locks.lock("b"):
        assert set(scrape()) == {
            ("store_up", "default"),
            ("held", "default", ""),
            ("held_seconds_max", "default", ""),
        }


def test_registering_asks_no_store(settings):
    settings.LOCKS = {"default": {"BACKEND": "nowhere.Store"}}
    CollectorRegistry().register(LocksCollector())


@pytest.mark.parametrize("kept", ["postgresql"], indirect=True)
def test_scrape_in_a_thread_of_its_own_leaves_no_connection_open(kept, settings):
    (alias,) = {settings.LOCKS["default"]["LOCATION"]}
    import_tenant("a")
    assert history.flush()
    left = []

    def serve():
        scrape()
        left.extend(connection.alias for connection in connections.all(initialized_only=True) if connection.connection)

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(30)
    assert alias not in left


def test_run_of_a_cron_process_that_is_gone_is_told(tmp_path):
    settings = {
        "INSTALLED_APPS": ["django_locks"],
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")}},
        "LOCKS": {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore", "HISTORY": 3600}},
        "USE_TZ": True,
    }
    script = (
        "import sys, django\n"
        "from django.conf import settings; settings.configure(**eval(sys.argv[1])); django.setup()\n"
        "from django.core.management import call_command\n"
    )
    run = [sys.executable, "-c", script + "call_command('migrate', verbosity=0)\nfrom django_locks import locks\n"]
    run[-1] += "call_command('locks', 'run', 'cron:nightly', '--', sys.executable, '-c', '')"
    subprocess.run([*run, repr(settings)], check=True, timeout=60)
    scraped = script + (
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "from django_locks.contrib.prometheus import LocksCollector\n"
        "registry = CollectorRegistry(); registry.register(LocksCollector()); print(generate_latest(registry).decode())"
    )
    told = subprocess.run(
        [sys.executable, "-c", scraped, repr(settings)], check=True, timeout=60, capture_output=True, text=True
    ).stdout
    last = r'^django_locks_last_success_timestamp_seconds\{store="default",template="cron:nightly"\} (\S+)$'
    assert re.search(last, told, re.MULTILINE), told


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "prometheus-alerts.yml"])
def test_files_ask_for_nothing_but_what_is_exported(name):
    text = (DOCS / name).read_text()
    asked = set(re.findall(r"\bdjango_locks_\w+", text))
    assert asked
    assert asked <= {f"django_locks_{family}" for family in FAMILIES}


def test_dashboard_is_valid():
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert all(target["expr"] for target in panel.get("targets", []))


def test_alerts_are_valid():
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    (group,) = yaml.safe_load((DOCS / "prometheus-alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= set(rule)
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_owner_is_in_no_metric(kept):
    with locks.lock("a") as guard:
        assert history.flush()
        registry = CollectorRegistry()
        registry.register(LocksCollector())
        text = generate_latest(registry).decode()
    assert "django_locks" in text
    assert str(guard.owner) not in text
