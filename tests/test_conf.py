from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_locks import InvalidLockStore, LockStoreDoesNotExist, locks
from django_locks import conf as conf_module
from django_locks.stores.memory import MemoryStore

MEMORY = "django_locks.stores.memory.MemoryStore"


class PickyStore(MemoryStore):
    def __init__(self, alias, location=None, key_prefix="", *, size=1, colour="red"):
        if size < 1:
            raise ValueError(f"size must be positive, not {size!r}")
        super().__init__(alias, location, key_prefix)


def holder_from_callable():
    return "from a callable\n"


def entry(**changes):
    return {"BACKEND": MEMORY, "LOCATION": "test_conf", **changes}


WRONG = [
    (5, "E001", "must be a dict"),
    ([], "E001", "must be a dict"),
    ({}, "E001", "no 'default'"),
    ({"other": entry()}, "E001", "no 'default'"),
    ({"default": MEMORY}, "E001", "must be a dict"),
    ({"default": entry(), 3: entry()}, "E001", "alias that is text"),
    ({"default": entry(Backend=1)}, "E001", "'Backend'"),
    ({"default": {"LOCATION": "x"}}, "E002", "BACKEND"),
    ({"default": entry(BACKEND=None)}, "E002", "None"),
    ({"default": entry(BACKEND="nowhere.Store")}, "E002", "nowhere.Store"),
    ({"default": entry(BACKEND="tests.test_conf.Missing")}, "E002", "Missing"),
    ({"default": entry(BACKEND="django.db.models.Model")}, "E002", "no lock store"),
    ({"default": entry(OPTIONS=[])}, "E003", "must be a dict"),
    ({"default": entry(OPTIONS={"key_prefix": "x"})}, "E003", "'key_prefix'"),
    ({"default": entry(BACKEND="tests.test_conf.PickyStore", OPTIONS={"sise": 1})}, "E003", "'sise'"),
    ({"default": entry(BACKEND="tests.test_conf.PickyStore", OPTIONS={"SIZE": 1})}, "E003", "'SIZE'"),
    ({"default": entry(TTL=0)}, "E004", "0"),
    ({"default": entry(TTL=None)}, "E004", "None"),
    ({"default": entry(TTL="30")}, "E004", "'30'"),
    ({"default": entry(TTL=True)}, "E004", "True"),
    ({"default": entry(TTL=float("nan"))}, "E004", "nan"),
    ({"default": entry(KEY_PREFIX="a:b")}, "E001", "a:b"),
    ({"default": entry(KEY_PREFIX="x" * 51)}, "E001", "KEY_PREFIX"),
    ({"default": entry(KEY_PREFIX=" x")}, "E001", "KEY_PREFIX"),
    ({"default": entry(KEY_PREFIX=None)}, "E001", "None"),
    ({"default": entry(HOLDER="")}, "E001", "HOLDER"),
    ({"default": entry(HOLDER=5)}, "E001", "5"),
]


@pytest.mark.parametrize(("wrong", "check_id", "text"), WRONG)
def test_wrong_setting_is_a_problem_that_names_the_value(settings, wrong, check_id, text):
    settings.LOCKS = wrong
    found = list(conf_module.problems())
    assert check_id in [problem.id for problem in found]
    assert any(text in problem.message for problem in found)
    assert all(problem.hint for problem in found)


@pytest.mark.parametrize("wrong", [wrong for wrong, _, text in WRONG if text != "alias that is text"])
def test_wrong_setting_is_refused_at_use(settings, wrong):
    settings.LOCKS = wrong
    with pytest.raises(InvalidLockStore) as caught:
        locks.try_acquire("x")
    assert isinstance(caught.value, ImproperlyConfigured)


def test_option_close_to_a_known_one_is_suggested(settings):
    settings.LOCKS = {"default": entry(BACKEND="tests.test_conf.PickyStore", OPTIONS={"color": 1})}
    assert "'colour'" in next(conf_module.problems()).hint


def test_store_that_refuses_its_options_is_an_invalid_store(settings):
    settings.LOCKS = {"default": entry(BACKEND="tests.test_conf.PickyStore", OPTIONS={"size": 0})}
    with pytest.raises(InvalidLockStore, match="size must be positive, not 0"):
        locks.try_acquire("x")


def test_unknown_alias_is_refused_by_name_when_used(settings):
    settings.LOCKS = {"default": entry()}
    service = locks.using("nope")
    with pytest.raises(LockStoreDoesNotExist, match=r"^LOCKS has no 'nope'\. It has: 'default'\.$") as caught:
        service.try_acquire("x")
    assert isinstance(caught.value, KeyError)
    assert caught.value.alias == "nope"


def test_other_alias_is_another_store(settings):
    settings.LOCKS = {"default": entry(), "reports": entry(LOCATION="test_conf reports")}
    with locks.lock("x"), locks.using("reports").lock("x") as guard:
        assert guard.alias == "reports"


def test_change_of_the_setting_takes_effect_at_once(settings):
    settings.LOCKS = {"default": entry(TTL=5)}
    with locks.lock("x") as guard:
        assert guard.ttl == 5
    settings.LOCKS = {"default": entry(TTL=timedelta(minutes=1))}
    with locks.lock("x") as guard:
        assert guard.ttl == 60


def test_ttl_is_30_seconds_by_default(settings):
    settings.LOCKS = {"default": entry()}
    with locks.lock("x") as guard:
        assert guard.ttl == 30


def test_without_the_setting_leases_are_in_the_default_database(settings):
    del settings.LOCKS
    assert conf_module.configured()["default"]["BACKEND"] == "django_locks.stores.database.DatabaseStore"
    assert not list(conf_module.problems())


def test_prefix_keeps_projects_apart_and_is_not_seen_by_them(settings):
    settings.LOCKS = {
        "default": entry(KEY_PREFIX="stg"),
        "prd": entry(KEY_PREFIX="prd"),
        "all": entry(),
    }
    with locks.lock("mail") as guard, locks.using("prd").lock("mail"):
        assert guard.name == "mail"
        assert locks.get("mail").name == "mail"
        assert [lease.name for lease in locks.leases()] == ["mail"]
        assert [lease.name for lease in locks.using("all").leases()] == ["prd:mail", "stg:mail"]
        assert not locks.using("all").force_release("mail")


@pytest.mark.parametrize(
    ("holder", "label"),
    [
        ("web-1.example.com", "web-1.example.com"),
        ("tests.test_conf.holder_from_callable", "from a callable?"),
        (holder_from_callable, "from a callable?"),
    ],
)
def test_holder_is_a_label_or_a_callable(settings, holder, label):
    settings.LOCKS = {"default": entry(HOLDER=holder)}
    with locks.lock("x") as guard:
        assert guard.holder == label


def test_holder_that_returns_no_text_is_refused(settings):
    settings.LOCKS = {"default": entry(HOLDER=lambda: None)}
    with pytest.raises(InvalidLockStore, match="HOLDER"):
        locks.try_acquire("x")


class ClosedStore(MemoryStore):
    def __init__(self, *args, **kwargs):
        raise OSError("no such socket")


def test_store_of_a_third_party_that_cannot_be_made_is_a_check_message(settings):
    settings.LOCKS = {"default": entry(BACKEND="tests.test_conf.ClosedStore")}
    [message] = run_checks(tags=["django_locks"])
    assert (message.id, message.msg) == (
        "django_locks.E003",
        "LOCKS['default']: its store cannot be made: OSError: no such socket",
    )
