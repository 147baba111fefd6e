"""What receivers are told: keyword arguments that stay, and a template instead of many names."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import contextmanager

import pytest

from django_locks import LeaseLost, LockNotAcquired, locks, signals, with_lock
from django_locks.testing import hold, lose
from django_locks.values import Name, clean_name, template_of

SIGNALS = ["lease_acquired", "lease_released", "lease_lost", "lock_refused", "lock_skipped", "lease_broken"]


@contextmanager
def heard():
    """Enter with a list of what is sent: the signal's name and its keyword arguments."""
    news, receivers = [], []
    for signal_name in SIGNALS:

        def receive(signal, sender, signal_name=signal_name, **kwargs):
            news.append((signal_name, kwargs))

        getattr(signals, signal_name).connect(receive)
        receivers.append((getattr(signals, signal_name), receive))
    try:
        yield news
    finally:
        for signal, receive in receivers:
            signal.disconnect(receive)


pytestmark = pytest.mark.usefixtures("memory_locks")


def test_each_signal_has_the_promised_arguments():
    with heard() as news:
        with locks.lock("a"):
            pass
        with pytest.raises(LeaseLost), locks.lock("b") as guard:
            lose(guard)
        broken = locks.acquire("c")
        locks.force_release("c")
        lose(broken)
        with hold("d"):
            with_lock("d")(lambda: None)()
    common = {"alias", "name", "template"}
    told = {name: set(kwargs) for name, kwargs in news}
    assert told == {
        "lease_acquired": common | {"guard", "waited"},
        "lease_released": common | {"guard", "outcome", "error", "held"},
        "lease_lost": common | {"guard", "reason", "held"},
        "lease_broken": common | {"lease"},
        "lock_refused": common | {"waited", "lease"},
        "lock_skipped": common | {"lease"},
    }


def test_release_tells_how_it_ended():
    with heard() as news, pytest.raises(ZeroDivisionError), locks.lock("a"):
        1 / 0  # noqa: B018
    kwargs = dict(news)["lease_released"]
    assert (kwargs["outcome"], kwargs["error"]) == ("failed", ZeroDivisionError)
    assert 0 <= kwargs["held"] < 5


def test_grant_tells_how_long_it_took():
    with heard() as news:
        locks.acquire("free").release()
        with hold("a", ttl=0.2):
            locks.acquire("a", wait=10).release()
    first, second = (kwargs["waited"] for name, kwargs in news if name == "lease_acquired")
    assert 0 <= first < 0.1 < second < 9


def test_refusal_is_told_once_however_long_it_was_waited():
    with hold("a") as guard, heard() as news:
        assert locks.try_acquire("a") is None
        with pytest.raises(LockNotAcquired):
            locks.acquire("a", wait=0.1)
    (_, tried), (_, waited) = news
    assert [name for name, _ in news] == ["lock_refused", "lock_refused"]
    assert tried["lease"] is None
    assert waited["lease"].fence == guard.fence
    assert tried["waited"] < 0.1 <= waited["waited"]


def test_refusal_is_told_under_asyncio():
    async def try_and_wait():
        assert await locks.atry_acquire("a") is None
        with pytest.raises(LockNotAcquired):
            await locks.aacquire("a", wait=0.05)

    with hold("a"), heard() as news:
        asyncio.run(try_and_wait())
    assert [name for name, _ in news] == ["lock_refused", "lock_refused"]


@with_lock("import:{tenant}")
def import_tenant(tenant):
    return "done"


@with_lock("import:{tenant}", limit=2)
async def import_some(tenant):
    return "done"


@with_lock(name=lambda tenant: f"called:{tenant}")
def import_called(tenant):
    return "done"


@with_lock
def nightly():
    return "done"


@with_lock("{{literal}}")
def literal():
    return "done"


@pytest.mark.parametrize(
    ("call", "name", "template"),
    [
        (lambda: import_tenant("acme"), "import:acme", "import:{tenant}"),
        (lambda: import_called("acme"), "called:acme", f"{__name__}.import_called"),
        (nightly, f"{__name__}.nightly", f"{__name__}.nightly"),
        (literal, "{literal}", "{literal}"),
        (lambda: locks.acquire("plain").release(), "plain", ""),
    ],
)
def test_signals_tell_the_template_beside_the_name(call, name, template):
    with heard() as news:
        call()
    assert [(kwargs["name"], kwargs["template"]) for _, kwargs in news] == [(name, template)] * 2
    assert {type(kwargs["name"]) for _, kwargs in news} == {str}
    with hold(name), heard() as news:
        call() if template else locks.try_acquire(name)
    assert {kwargs["template"] for _, kwargs in news} == {template}
    assert ("lock_skipped" in dict(news)) is bool(template)


def test_each_place_of_a_limit_has_the_template():
    with heard() as news:
        asyncio.run(import_some("acme"))
    assert [kwargs["name"][:-1] for _, kwargs in news] == ["import:acme#"] * 2
    assert {kwargs["template"] for _, kwargs in news} == {"import:{tenant}"}


def test_guard_knows_its_template():
    with locks.lock(Name("a:1", "a:{n}")) as guard:
        assert (guard.name, guard.template) == ("a:1", "a:{n}")
        assert type(guard.name) is str


def test_leader_has_its_name_as_template():
    assert locks.leader("beat").run(lambda guard: guard.template) == "beat"


def test_name_keeps_its_template_when_cleaned():
    name = clean_name(Name("e\N{COMBINING ACUTE ACCENT}", "{letter}"))
    assert (name, template_of(name)) == ("\N{LATIN SMALL LETTER E WITH ACUTE}", "{letter}")
    assert json.loads(json.dumps(name)) == name
    assert template_of("plain") == ""


def test_logs_of_locks_carry_the_same_fields(caplog):
    caplog.set_level(logging.INFO, "django_locks")
    with hold("import:acme") as other:
        import_tenant("acme")
    with pytest.raises(LeaseLost), locks.lock(Name("b:1", "b:{n}")) as guard:
        lose(guard)
    (skipped, lost) = (record for record in caplog.records if record.name == "django_locks")
    fields = ("lock", "lock_store", "holder", "fence", "template")
    assert [getattr(skipped, field) for field in fields] == [
        "import:acme",
        "default",
        other.holder,
        other.fence,
        "import:{tenant}",
    ]
    assert [getattr(lost, field) for field in fields] == ["b:1", "default", guard.holder, guard.fence, "b:{n}"]
    assert guard.owner not in caplog.text
