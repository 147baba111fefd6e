from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import io
import json
import logging
import pickle
import time
import typing
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from django_locks import SKIPPED, LeaseLost, LockNotAcquired, Skipped, StoreUnavailable, conf, locks, with_lock
from django_locks.signals import lock_skipped
from tests.faults import failing

pytestmark = pytest.mark.usefixtures("memory_locks")


def module_level(a: int, b: str = "x", *, c: float = 1.0) -> str:
    """Say something."""
    return f"{a}{b}{c}"


decorated = with_lock("decorated")(module_level)


@with_lock
def bare():
    return [lease.name for lease in locks.leases()]


@pytest.fixture
def held():
    """Somebody else holds the lock 'x'."""
    service = locks
    guard = service.acquire("x", ttl=20)
    yield guard
    guard.release()


class Nightly(BaseCommand):
    help = "Test command."

    def add_arguments(self, parser):
        parser.add_argument("--option", default="none")

    def handle(self, *args, option, **options):
        self.stdout.write(f"ran with {option}, holding {[lease.name for lease in locks.leases()]}")
        return "result"


def command_class(**options):
    return with_lock("x", **options)(type("Command", (Nightly,), {}))


def run_command(command, *argv):
    command = command()
    command.stdout._out = io.StringIO()
    command.stderr._out = io.StringIO()
    status = 0
    try:
        command.run_from_argv(["manage.py", "nightly", *argv])
    except SystemExit as error:
        status = error.code
    return status, command.stdout._out.getvalue(), command.stderr._out.getvalue()


def test_function_runs_while_holding_the_lock_and_frees_it():
    seen = []

    @with_lock("x")
    def work(value):
        seen.append(locks.get("x") is not None)
        return value * 2

    assert work(21) == 42
    assert seen == [True]
    assert locks.get("x") is None


def test_default_name_is_module_and_qualified_name():
    assert bare() == ["tests.test_decorators.bare"]


def test_exception_of_the_body_passes_and_frees():
    @with_lock("x")
    def work():
        raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        work()
    assert locks.get("x") is None


def test_busy_lock_skips_and_says_who_holds_it(held, caplog):
    caplog.set_level(logging.INFO, "django_locks")
    ran = []
    result = with_lock("x")(lambda: ran.append(1))()
    assert result is SKIPPED
    assert ran == []
    [record] = caplog.records
    assert record.levelname == "INFO"
    assert "'x'" in record.getMessage()
    assert held.holder in record.getMessage()
    assert "free in" in record.getMessage()
    assert held.owner not in str(vars(record))


def test_skip_is_falsy_one_object_and_survives_pickle_copy_and_json():
    assert not SKIPPED
    assert isinstance(SKIPPED, Skipped)
    assert repr(SKIPPED) == "SKIPPED"
    for twin in (pickle.loads(pickle.dumps(SKIPPED)), copy.copy(SKIPPED), copy.deepcopy(SKIPPED)):
        assert twin is SKIPPED
    assert json.loads(json.dumps({"result": SKIPPED}))["result"] == SKIPPED
    assert SKIPPED not in (None, False, "", 0, {}, "skipped")


def test_skip_sends_a_signal(held):
    heard = []

    def hear(sender, alias, name, lease, **kwargs):
        heard.append((alias, name, lease.fence))

    lock_skipped.connect(hear)
    try:
        with_lock("x")(lambda: None)()
    finally:
        lock_skipped.disconnect(hear)
    assert heard == [("default", "x", held.fence)]


def test_busy_lock_raises_when_told_to(held):
    with pytest.raises(LockNotAcquired) as caught:
        with_lock("x", on_busy="raise")(lambda: None)()
    assert caught.value.lease.fence == held.fence


def test_busy_lock_calls_the_callable_with_the_refusal(held):
    assert with_lock("x", on_busy=lambda busy: busy.name.upper())(lambda: None)() == "X"


def test_refusal_of_another_lock_in_the_body_is_not_taken_for_a_skip(held):
    @with_lock("y")
    def work():
        locks.acquire("x")

    with pytest.raises(LockNotAcquired, match="'x'"):
        work()


def test_recursive_call_is_refused_at_once():
    @with_lock("x", wait=None, on_busy="raise")
    def work(depth):
        return work(depth - 1) if depth else "bottom"

    start = time.monotonic()
    with pytest.raises(LockNotAcquired, match="calling thread"):
        work(3)
    assert time.monotonic() - start < 1


def test_unreachable_store_does_not_run_the_body():
    ran = []
    with failing(conf.entries("default").store, "acquire"), pytest.raises(StoreUnavailable):
        with_lock("x")(lambda: ran.append(1))()
    assert ran == []


def test_lost_lease_is_not_reported_as_success():
    @with_lock("x")
    def work():
        locks.force_release("x")

    with pytest.raises(LeaseLost):
        work()


def test_name_is_filled_from_the_arguments_once():
    taken = []

    @with_lock("import:{tenant[id]}")
    def work(tenant):
        taken.extend(lease.name for lease in locks.leases())
        tenant["id"] = "changed"

    work({"id": 7})
    assert taken == ["import:7"]
    assert list(locks.leases()) == []


def test_name_may_be_a_callable_given_by_keyword():
    @with_lock(name=lambda number: f"n:{number}")
    def work(number):
        return [lease.name for lease in locks.leases()]

    assert work(3) == ["n:3"]


def test_field_that_is_no_parameter_is_an_error_when_decorating():
    with pytest.raises(ValueError, match="no parameter 'tenant'"):

        @with_lock("import:{tenant}")
        def work(other):
            pass


def test_empty_value_is_an_error_before_the_body():
    ran = []
    work = with_lock("order:{order_id}")(lambda order_id: ran.append(order_id))
    for value in (None, ""):
        with pytest.raises(ValueError, match="order_id"):
            work(value)
    assert ran == []
    assert list(locks.leases()) == []


def test_wrong_arguments_are_the_type_error_of_the_function():
    with pytest.raises(TypeError, match="argument"):
        with_lock("{a}")(lambda a: None)()


@pytest.mark.parametrize("options", [{"on_busy": "wait"}, {"on_busy": None}, {"ttl": 0}, {"wait": -1}, {"colour": 1}])
def test_bad_option_is_refused_when_decorating(options):
    with pytest.raises((ValueError, TypeError)):
        with_lock("x", **options)(lambda: None)


def test_two_names_are_refused():
    with pytest.raises(TypeError, match="two names"):
        with_lock("x", name="y")


def test_decorated_function_looks_like_the_original():
    assert decorated.__name__ == "module_level"
    assert decorated.__qualname__ == module_level.__qualname__
    assert decorated.__module__ == __name__
    assert decorated.__doc__ == "Say something."
    assert decorated.__annotations__ == module_level.__annotations__
    assert inspect.signature(decorated) == inspect.signature(module_level)
    assert not inspect.iscoroutinefunction(decorated)
    assert decorated(1, c=2.0) == "1x2.0"


def test_decoration_cannot_be_stripped_but_the_original_is_known():
    assert not hasattr(decorated, "__wrapped__")
    assert inspect.unwrap(decorated) is decorated
    assert decorated.__locked__ is module_level

    @functools.wraps(module_level)
    def other(*args):
        return None

    assert not hasattr(with_lock("x")(other), "__wrapped__")


def test_decorated_function_is_pickled_by_reference():
    assert pickle.loads(pickle.dumps(bare)) is bare


class Service:
    pk = 5

    @with_lock("s:{self.pk}")
    def method(self):
        return [lease.name for lease in locks.leases()]

    @with_lock
    def default(self):
        return [lease.name for lease in locks.leases()]

    @classmethod
    @with_lock
    def inside_class(cls):
        return cls, [lease.name for lease in locks.leases()]

    @with_lock
    @classmethod
    def outside_class(cls):
        return cls, [lease.name for lease in locks.leases()]

    @staticmethod
    @with_lock
    def inside_static():
        return [lease.name for lease in locks.leases()]

    @with_lock
    @staticmethod
    def outside_static():
        return [lease.name for lease in locks.leases()]


def test_methods_of_every_kind_are_taken():
    prefix = "tests.test_decorators.Service"
    assert Service().method() == ["s:5"]
    assert Service().default() == [f"{prefix}.default"]
    assert Service.inside_class() == (Service, [f"{prefix}.inside_class"])
    assert Service().outside_class() == (Service, [f"{prefix}.outside_class"])
    assert Service.inside_static() == [f"{prefix}.inside_static"]
    assert Service().outside_static() == [f"{prefix}.outside_static"]


def test_partial_and_callable_object_are_taken():
    class Adder:
        def __call__(self, number):
            return number + 1, [lease.name for lease in locks.leases()]

    assert with_lock("x")(functools.partial(module_level, 1))() == "1x1.0"
    result, names = with_lock(Adder())(2)
    assert (result, names) == (3, ["tests.test_decorators.test_partial_and_callable_object_are_taken.<locals>.Adder"])


def generator():
    yield 1


async def async_generator():
    yield 1


class GeneratorObject:
    def __call__(self):
        yield 1


@pytest.mark.parametrize(
    "target", [generator, async_generator, GeneratorObject(), functools.partial(generator), staticmethod(generator)]
)
def test_generators_are_refused_with_the_way_out(target):
    with pytest.raises(TypeError, match=r"generator.*with locks\.lock"):
        with_lock("x")(target)


@pytest.mark.parametrize("target", [5, "text", None, dict, object])
def test_what_is_no_function_is_refused(target):
    with pytest.raises(TypeError, match="with_lock takes"):
        with_lock("x")(target)


def test_command_runs_while_holding_the_lock():
    assert run_command(command_class(), "--option", "one") == (0, "ran with one, holding ['x']\nresult\n", "")
    assert locks.get("x") is None


def test_busy_command_says_who_holds_the_lock_and_exits_0(held):
    status, out, err = run_command(command_class())
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    assert "Skipped" in out
    assert held.holder in out


def test_busy_command_that_must_run_exits_75(held):
    status, out, err = run_command(command_class(on_busy="raise"))
    assert (status, out) == (75, "")
    assert held.holder in err


def test_busy_command_called_from_code_raises_the_refusal(held):
    with pytest.raises(LockNotAcquired) as caught:
        call_command(command_class(on_busy="raise")())
    assert isinstance(caught.value, CommandError)
    assert caught.value.lease.fence == held.fence


def test_command_with_an_unreachable_store_exits_69():
    with failing(conf.entries("default").store, "acquire"):
        status, out, err = run_command(command_class())
    assert (status, out) == (69, "")
    assert "could not acquire" in err


def test_command_that_lost_its_lease_exits_74():
    class Command(Nightly):
        def handle(self, *args, **options):
            locks.force_release("x")

    status, _, err = run_command(with_lock("x")(Command))
    assert status == 74
    assert "LeaseLost" in err


def test_decorated_handle_is_a_command_too(held):
    class Command(BaseCommand):
        @with_lock("x")
        def handle(self, *args, **options):
            raise AssertionError

    assert "Skipped" in run_command(Command)[1]


def test_command_called_from_code_gets_its_options_and_returns_its_result(capsys):
    assert call_command(command_class()(), option="two") == "result"
    assert "ran with two" in capsys.readouterr().out


def test_help_of_a_command_takes_no_lock(held, capsys):
    status, _, _ = run_command(command_class(), "--help")
    assert status == 0
    assert "Test command." in capsys.readouterr().out


def test_command_keeps_its_class():
    decorated_class = with_lock("x")(type("Command", (Nightly,), {"__doc__": "doc"}))
    assert issubclass(decorated_class, Nightly)
    assert decorated_class.__doc__ == "doc"
    assert "handle" not in vars(Nightly.__base__) or Nightly.handle is not decorated_class.handle


def test_annotations_that_are_text_can_be_resolved():
    assert typing.get_type_hints(decorated) == {"a": int, "b": str, "c": float, "return": str}
    assert typing.get_type_hints(with_lock("x")(uses_a_name_of_this_module)) == {"path": Path, "return": Path}


def uses_a_name_of_this_module(path: Path) -> Path:
    return path


@dataclasses.dataclass(frozen=True)
class Task:
    """As those of ``django.tasks``, which tests/contrib has."""

    func: typing.Any
    queue: str

    def enqueue(self, *args):
        return self.func(*args)

    def using(self):
        return self


def test_task_object_becomes_another_one_with_the_lock(held):
    task = Task(module_level, "mail")
    assert with_lock("x")(task).enqueue(1) is SKIPPED
    assert with_lock(name="y")(task).queue == "mail"
    assert with_lock(task).enqueue(1) == "1x1.0"
    assert task.enqueue(1) == "1x1.0"
