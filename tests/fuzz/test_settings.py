"""Any value in place of ``LOCKS`` and of what is in it: messages of the checks, and `InvalidLockStore` at use."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_locks import InvalidLockStore, conf, locks
from django_locks.stores.base import BaseStore
from django_locks.stores.redis import RedisStore
from tests.conftest import DATABASE, MEMORY, REDIS
from tests.fuzz.profile import examples
from tests.fuzz.strategies import ANYTHING, DURATIONS, TEXT

PASSWORD = "".join(["sw0rd", "f1sh"])  # hypothesis knows the constants of a file

PATHS = st.sampled_from(
    [
        *(MEMORY, REDIS, DATABASE),
        *("", ".", "..", ".a", "a.", "a..b", "os", "os.path", "json.loads", "no.such.store", "django_locks", "os.sep"),
        *("django_locks.stores.base.BaseStore", "tests.fuzz.test_settings.ThirdParty", "testproject", "\0.\0", "é.ü"),
        *("tests.fuzz.test_settings.Raising", "tests.fuzz.test_settings.raising", "tests.fuzz.broken_module.store"),
    ]
)
URLS = st.one_of(
    st.sampled_from(
        [
            f"redis://:{PASSWORD}@h",
            f"redis://u:{PASSWORD}@h:x/0",
            f"redis://u:{PASSWORD}@[::1/0",
            f"rediss://u:{PASSWORD}@h/0?ssl_cert_reqs=what",
            f"redis://h?password={PASSWORD}&socket_timeout=x",
            f"redis://u:{PASSWORD}@h/0?unknown=1",
            f"unix://u:{PASSWORD}@?db=x",
            f"http://u:{PASSWORD}@h",
            f"redis://u:{PASSWORD}%zz@h:99999999/x",
            f"redis://{PASSWORD}\0@h\u2100",
        ]
    ),
    TEXT.map(lambda text: f"redis://u:{PASSWORD}@{text}"),
    TEXT.map(lambda text: f"redis://u:{PASSWORD}@h/0?{text}"),
)
# fmt: off
KEYS = [
    "cluster", "sentinel", "sentinel_kwargs", "wait_replicas", "wait_timeout", "notify", "socket_timeout", "db",
    "password", "host", "ssl", "retry", "encoding", "protocol", "max_connections", "Cluster", "alias", "self",
]
# fmt: on
OPTIONS = st.dictionaries(
    st.sampled_from(KEYS) | ANYTHING.filter(lambda value: value.__hash__ is not None),
    ANYTHING,
    max_size=2,
)


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any] = ANYTHING) -> st.SearchStrategy[Any]:
    """Return a strategy whose values are good ones three times out of four."""
    return st.integers(0, 3).flatmap(lambda number: good if number else bad)


ENTRIES = st.fixed_dictionaries(
    {"BACKEND": mostly(st.sampled_from([MEMORY, REDIS, DATABASE]), PATHS | ANYTHING | URLS)},
    optional={
        "LOCATION": mostly(st.just("default") | URLS | st.lists(URLS, max_size=2)),
        "TTL": mostly(DURATIONS),
        "RENEW": mostly(st.booleans()),
        "KEY_PREFIX": mostly(st.text(max_size=20), TEXT | ANYTHING),
        "HOLDER": mostly(PATHS, TEXT | ANYTHING),
        "HISTORY": mostly(DURATIONS),
        "OPTIONS": mostly(st.just({}), OPTIONS | ANYTHING),
        "TIMEOUT": ANYTHING,
    },
)
ALIASES = st.sampled_from(["default", "default", "other", ""]) | st.text(max_size=3) | st.integers()
LOCKS = mostly(
    st.builds(dict, default=ENTRIES),
    st.dictionaries(ALIASES, mostly(ENTRIES), max_size=2) | ANYTHING | URLS | st.builds(dict, default=URLS),
)


class ThirdParty(BaseStore):
    """Looks at nothing."""

    def __init__(self, alias: str, location: Any = None, key_prefix: str = "", *, notify: Any = None) -> None:
        super().__init__(alias, location, key_prefix)


class Raising(BaseStore):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise ValueError("as programs do")


def raising() -> str:
    raise RuntimeError("as programs do")


def texts(messages: Any) -> list[str]:
    return [text for message in messages for text in (message.msg, message.hint or "", message.id)]


@examples(600, times=10)
@given(LOCKS)
def test_any_setting_ends_in_messages_of_the_checks_and_works_or_is_refused_at_use(setting: Any) -> None:
    with override_settings(LOCKS=setting):
        found = run_checks(tags=["django_locks"], include_deployment_checks=True)
        wrong = [message for message in found if message.is_serious() and message.id != "django_locks.E007"]
        for text in texts(found):
            assert PASSWORD not in text
        aliases = list(setting) if isinstance(setting, dict) else []
        for alias in {"default", *(alias for alias in aliases if isinstance(alias, str))}:
            try:
                entry = conf.entries(alias)
            except InvalidLockStore as error:
                assert PASSWORD not in str(error)
                assert wrong, error
            else:
                assert PASSWORD not in repr(entry)
                assert 0 < entry.ttl <= 10 * 365 * 86400
                assert callable(entry.holder)


@examples(320)
@given(URLS | st.lists(URLS, max_size=3) | ANYTHING, OPTIONS)
def test_any_location_and_options_of_redis_are_taken_or_refused_without_the_password(
    location: Any, options: dict[Any, Any]
) -> None:
    setting = {"default": {"BACKEND": REDIS, "LOCATION": location, "OPTIONS": options}}
    with override_settings(LOCKS=setting):
        try:
            store = conf.entries("default").store
        except InvalidLockStore as error:
            assert PASSWORD not in str(error)
            return
        assert isinstance(store, RedisStore)
        assert PASSWORD not in repr(store)
        assert PASSWORD not in repr(store.servers())


@pytest.mark.parametrize(
    "holder", [".", "..", ".web", "web.", "web..1", "a b.c", "web-1.example.com", "10.0.0.1", "é.ü"]
)
def test_holder_that_looks_like_a_path_is_a_label(holder: str, memory_locks: None, settings: Any) -> None:
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "HOLDER": holder}}
    assert run_checks(tags=["django_locks"]) == []
    with locks.lock("x") as guard:
        assert guard.holder == holder


def test_holder_whose_module_fails_is_told_by_the_checks(memory_locks: None, settings: Any) -> None:
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "HOLDER": "tests.fuzz.broken_module.holder"}}
    (message,) = run_checks(tags=["django_locks"])
    assert message.id == "django_locks.E001"
    assert "as programs do" in message.msg
    with pytest.raises(InvalidLockStore, match="as programs do"):
        locks.acquire("x")


@pytest.mark.parametrize("prefix", ["e\u0301" * 50, "a" * 50, "é" * 50])
def test_longest_prefix_and_name_together_fit_into_every_store(prefix: str, every_store: Any, settings: Any) -> None:
    settings.LOCKS = {"default": {**settings.LOCKS["default"], "KEY_PREFIX": prefix, "TTL": timedelta(minutes=1)}}
    with locks.lock("e\u0301" * 200) as guard:
        assert locks.get("é" * 200) is not None
        assert len(guard.key) == 251


@pytest.mark.parametrize("alias", [None, 1, [], {}, "é", ""])
def test_alias_that_is_none_is_refused(alias: Any, memory_locks: None) -> None:
    with pytest.raises((InvalidLockStore, TypeError)):
        locks.using(alias).acquire("x")
