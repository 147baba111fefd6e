from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal

import pytest
from django.contrib.auth.models import Group

from django_locks.naming import constant_name, namer


def name_of(template, function, *args, **kwargs):
    return namer(template, function)(args, kwargs)


def order(order_id, tenant="main", *, day=None, **extra):
    return None


@pytest.mark.parametrize(
    "call",
    [
        lambda name: name((1, 2), {}),
        lambda name: name((1,), {"tenant": 2}),
        lambda name: name((), {"tenant": 2, "order_id": 1}),
    ],
)
def test_calls_that_bind_the_same_values_share_one_name(call):
    assert call(namer("o:{order_id}:{tenant}", order)) == "o:1:2"


def test_defaults_are_part_of_the_name():
    assert name_of("{order_id}@{tenant}", order, 7) == "7@main"


def test_attributes_items_and_formats_are_followed():
    class Box:
        pk = 5

    assert name_of("{order_id.pk}", order, Box()) == "5"
    assert name_of("{extra[shop]}", order, 1, shop="north") == "north"
    assert name_of("{day:%Y-%m}", order, 1, day=date(2026, 3, 4)) == "2026-03"


IDENTIFIER = uuid.UUID(int=5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (3, "3"),
        (2.5, "2.5"),
        (Decimal("1.10"), "1.10"),
        (IDENTIFIER, str(IDENTIFIER)),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4), "2026-01-02 03:04:00"),
        (Group(pk=9), None),
    ],
)
def test_value_is_text_number_uuid_date_or_saved_instance(value, text):
    if isinstance(value, Group):
        value._state.adding = False
        text = "9"
    assert name_of("x:{order_id}", order, value) == f"x:{text}"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        True,
        object(),
        [1],
        {"a": 1},
        {1},
        b"a",
        float("nan"),
        float("inf"),
        Group(),
        Group(pk=1),
        order,
        Group,
    ],
)
def test_other_or_missing_value_is_a_value_error(value):
    with pytest.raises(ValueError, match="order_id"):
        name_of("order:{order_id}", order, value)


@pytest.mark.parametrize(
    "template",
    ["{}", "{0}", "{missing}", "{missing.pk}", "a:{self.pk}", "{order_id!r}", "{order_id:{tenant}}", "{order_id", "}"],
)
def test_field_that_cannot_be_filled_is_an_error_before_any_call(template):
    with pytest.raises(ValueError, match="name"):
        constant_name(template, "default") or namer(template, order)


def test_doubled_braces_stand_for_one():
    assert constant_name("a{{b}}", "default") == "a{b}"
    assert name_of("{{{order_id}}}", order, 1) == "{1}"


def test_callable_is_given_the_arguments_of_the_call():
    assert namer(lambda order_id, tenant="t": f"{order_id}/{tenant}", order)((1,), {"tenant": "x"}) == "1/x"


@pytest.mark.parametrize("result", [None, ""])
def test_callable_that_returns_nothing_is_a_value_error(result):
    with pytest.raises(ValueError, match="callable"):
        namer(lambda *args: result, order)((1,), {})


def test_callable_that_returns_no_text_is_a_type_error():
    with pytest.raises(TypeError, match="must be text"):
        namer(lambda *args: 5, order)((1,), {})


def test_text_without_fields_is_the_name_of_all_calls():
    assert constant_name("cron:nightly", "x") == "cron:nightly"
    assert constant_name(None, "module.function") == "module.function"
    assert constant_name("a:{b}", "x") is None


@pytest.mark.parametrize("name", [5, b"job", ["job"]])
def test_name_that_is_neither_text_nor_callable_is_a_type_error(name):
    with pytest.raises(TypeError, match="must be text"):
        constant_name(name, "module.function")
