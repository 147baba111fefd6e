"""The owner, which proves a grant, and a server's password are in nothing that is said, shown, logged or counted."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.template.defaultfilters import pprint
from django.views.debug import ExceptionReporter

import django_locks
from django_locks import LockError, StoreUnavailable, conf, locks, signals, with_lock
from django_locks.testing import lose, unavailable
from tests.cli import end
from tests.conftest import REDIS
from tests.servers import redis as servers
from tests.servers.fixtures_redis import started

SECRET = re.compile("[0-9a-f]{32}")
PASSWORD = "sw0rdf1sh"


@contextmanager
def owners_granted() -> Iterator[set[str]]:
    """Collect the owners of all grants."""
    owners: set[str] = set()

    def remember(guard: Any, **kwargs: Any) -> None:
        owners.add(str(guard.owner))

    signals.lease_acquired.connect(remember)
    try:
        yield owners
    finally:
        signals.lease_acquired.disconnect(remember)


def live_through(store: Any) -> Iterator[object]:
    """Yield what is said in the life of a few locks."""
    guard = locks.acquire("job", ttl=30)
    yield from (guard, guard.__dict__ if hasattr(guard, "__dict__") else "", guard._grant, guard._terms)
    yield [*locks.leases(), locks.get("job")]
    yield with_lock("job")(print)()
    for call in (lambda: locks.acquire("job"), lambda: locks.lock("job", wait=0.01).__enter__()):
        with pytest.raises(LockError) as refused:
            call()
        yield from ("".join(traceback.format_exception(refused.value)), refused.value.__dict__)
    for arguments in (["list"], ["list", "--json"], ["show", "job"], ["show", "job", "--json"], ["doctor", "--json"]):
        yield end(*arguments)
    with unavailable():
        for ask in (guard.extend, guard.release):
            with pytest.raises(StoreUnavailable) as failed:
                ask()
            yield "".join(traceback.format_exception(failed.value))
    yield end("release", "job", "--force", "--yes", "--json")
    lose(guard)
    with pytest.raises(LockError) as lost:
        guard.check()
    yield from ("".join(traceback.format_exception(lost.value)), lost.value.__dict__, guard)
    with unavailable(), pytest.raises(StoreUnavailable):
        with locks.lock("job"):
            pass
    other = locks.acquire("other")
    handed = locks.adopt("other", other.detach())
    yield from (other, handed)
    handed.release()


def test_owner_is_in_no_message_log_representation_or_output(
    any_store: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[object] = []
    hear: Callable[..., None] = lambda sender, **what: heard.append(what)  # noqa: E731
    every = [each for each in vars(signals).values() if isinstance(each, type(signals.lease_lost))]
    for signal in every:
        signal.connect(hear)
    try:
        with caplog.at_level(logging.DEBUG), owners_granted() as owners:
            said = [repr(each) for each in live_through(conf.entries("default").store)]
    finally:
        for signal in every:
            signal.disconnect(hear)
    records = [{**vars(each), "text": each.getMessage()} for each in caplog.records if "django_locks" in each.name]
    out = capsys.readouterr()
    whole = "\n".join([*said, repr(heard), repr(records), out.out, out.err])
    assert len(owners) == 2
    assert all(SECRET.fullmatch(owner) for owner in owners)
    assert len(records) >= 2
    assert len(heard) > 5
    for owner in owners:
        assert owner not in whole


def test_owner_is_text_for_programs() -> None:
    owner = django_locks.values.new_owner()
    assert SECRET.fullmatch(owner)
    assert str(owner) not in repr(owner)
    assert str(owner) not in repr([owner, {"owner": owner}])
    assert json.loads(json.dumps([owner])) == [owner]
    assert f"{owner}" == str(owner) == owner
    assert type(str(owner)) is str


# Reports of errors


def reports(error: BaseException, settings: Any) -> dict[str, str]:
    """Return Django's report of an error, as it is mailed to the admins and as the browser shows it."""
    texts = {}
    for debug in (False, True):
        settings.DEBUG = debug
        reporter = ExceptionReporter(None, type(error), error, error.__traceback__)
        frames = [frame for frame in reporter.get_traceback_frames() if frame["filename"] != __file__]
        assert any(frame["vars"] for frame in frames)
        ours = [frame for frame in frames if "/django_locks/" in frame["filename"]]
        assert ours
        # With DEBUG, the variables of the driver's functions are shown as they are.
        texts["shown" if debug else "mailed"] = "\n".join(
            f"{frame['function']} {name} = {pprint(value)}"
            for frame in (ours if debug else frames)
            for name, value in frame["vars"]
        )
    return texts


class Broken:
    """A store whose server fails, in the driver's own functions."""

    def __init__(self, kind: str, request: pytest.FixtureRequest) -> None:
        spec = request.getfixturevalue("spec_of")(kind)
        request.getfixturevalue("settings").LOCKS = {"default": spec.locks}
        self.kind, self.location = kind, spec.locks["LOCATION"]

    @contextmanager
    def broken(self) -> Iterator[None]:
        if self.kind in ("redis", "valkey"):
            import redis

            with redis.Redis.from_url(self.location) as client:
                client.config_set("maxmemory", "1")
                try:
                    yield
                finally:
                    client.config_set("maxmemory", "0")
            return
        with connections[self.location].cursor() as cursor:
            cursor.execute("ALTER TABLE django_locks_lease RENAME TO django_locks_away")
            try:
                yield
            finally:
                cursor.execute("ALTER TABLE django_locks_away RENAME TO django_locks_lease")


VERBS: dict[str, Callable[[Any], object]] = {
    "acquire": lambda store: store.acquire("job", OWNER, 30, "me"),
    "renew": lambda store: store.renew([("job", OWNER, 30.0)]),
    "renew many": lambda store: store.renew([("job", OWNER, 30.0), ("other", OWNER, 30.0)]),
    "release": lambda store: store.release("job", OWNER, 5),
}
OWNER = django_locks.values.new_owner()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_owner_is_in_no_report_of_a_database_s_error(
    kind: str, verb: str, request: pytest.FixtureRequest, settings: Any
) -> None:
    site = Broken(kind, request)
    store = conf.entries("default").store
    store.acquire("job", OWNER, 30, "me")
    with site.broken(), pytest.raises(StoreUnavailable) as caught:
        VERBS[verb](store)
    for text in reports(caught.value, settings).values():
        assert [line for line in text.splitlines() if str(OWNER) in line] == []


@pytest.fixture
def redis_server() -> Iterator[servers.Server]:
    yield from started(servers.running(servers.valkey_binary()))


@pytest.mark.parametrize("verb", VERBS)
def test_owner_is_in_no_report_of_an_error_of_redis(verb: str, redis_server: Any, settings: Any) -> None:
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": redis_server.url}}
    store = conf.entries("default").store
    store.acquire("job", OWNER, 30, "me")
    redis_server.stop()
    with pytest.raises(StoreUnavailable) as caught:
        VERBS[verb](store)
    for text in reports(caught.value, settings).values():
        assert [line for line in text.splitlines() if str(OWNER) in line] == []


def test_password_is_in_no_report_of_a_refused_login(redis_url: str, settings: Any) -> None:
    url = redis_url.replace("redis://", f"redis://nobody:{PASSWORD}@")
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": url}}
    with pytest.raises(StoreUnavailable) as caught:
        locks.acquire("job")
    texts = reports(caught.value, settings)
    for text in texts.values():
        assert [line for line in text.splitlines() if PASSWORD in line] == []
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    for arguments in (["list"], ["list", "--json"], ["doctor"], ["doctor", "--json"], ["show", "job"]):
        ended = end(*arguments)
        assert ended.code
        assert PASSWORD not in ended.out + ended.err
    assert PASSWORD not in repr(conf.entries("default"))
    assert PASSWORD not in repr(vars(sys.modules["django_locks.conf"]))


@pytest.mark.parametrize("location", [f"redis://u:{PASSWORD}@h:x/0", f"redis://u:{PASSWORD}@h/0?unknown=1"])
def test_password_is_in_no_report_of_a_wrong_setting(location: str, settings: Any) -> None:
    settings.LOCKS = {"default": {"BACKEND": REDIS, "LOCATION": location, "OPTIONS": {"password": PASSWORD}}}
    (message,) = run_checks(tags=["django_locks"])
    assert PASSWORD not in repr(message) + str(message)
    with pytest.raises(django_locks.InvalidLockStore) as caught:
        locks.acquire("job")
    mailed = reports(caught.value, settings)["mailed"]
    assert [line for line in mailed.splitlines() if PASSWORD in line] == []
    for arguments in (["list"], ["doctor"], ["doctor", "--json"]):
        ended = end(*arguments)
        assert PASSWORD not in ended.out + ended.err
