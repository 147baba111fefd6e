"""The lock's name of one call of a decorated function."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from string import Formatter
from typing import Any, TypeVar
from uuid import UUID

from .values import clean_name

T = TypeVar("T")
Namer = Callable[[tuple[Any, ...], dict[str, Any]], str]


def constant_name(name: Any, default: str) -> str | None:
    """Return the name if it is the same for all calls, else ``None``. Raises as `clean_name`."""
    if name is None:
        return clean_name(default)
    if callable(name):
        return None
    if not isinstance(name, str):
        return clean_name(name)  # refuses it
    return None if _fields(name) else clean_name(name.replace("{{", "{").replace("}}", "}"))


def namer(name: Any, function: Callable[..., Any]) -> Namer:
    """Return what works out the name from a call's arguments.

    ``name``: a callable given the same arguments, or text with fields of them. Raises ValueError for a field that is
    no parameter of ``function``; the returned callable for a value that is empty, missing, or may print differently
    in another process.
    """
    if callable(name):
        return lambda args, kwargs: clean_name(_required(name(*args, **kwargs), "The callable given as name="))
    signature = inspect.signature(function)
    for field, spec, conversion in _fields(name):
        _check_field(name, field, spec, conversion, signature)

    def fill(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return clean_name(_fill(name, bound.arguments))

    return fill


def _fields(template: str) -> list[tuple[str, str, str | None]]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"The lock's name {template!r} is no valid template: {error}.") from None
    return [(field, spec or "", conversion) for _, field, spec, conversion in parsed if field is not None]


def _check_field(template: str, field: str, spec: str, conversion: str | None, signature: inspect.Signature) -> None:
    root = _root(field)
    if root not in signature.parameters:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"The lock's name {template!r} has a field {{{field}}}, but the function has no parameter {root!r}. "
            f"Its parameters: {known}."
        )
    if conversion or "{" in spec:
        raise ValueError(f"The lock's name {template!r} may not use conversions or nested fields: {{{field}}}.")


def _root(field: str) -> str:
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _fill(template: str, arguments: Mapping[str, Any]) -> str:
    formatter = Formatter()
    parts = []
    for literal, field, spec, _ in formatter.parse(template):
        parts.append(literal)
        if field is not None:
            value, _ = formatter.get_field(field, (), arguments)
            parts.append(_as_text(value, spec or "", f"The field {{{field}}} of the lock's name {template!r}"))
    return "".join(parts)


def _as_text(value: Any, spec: str, what: str) -> str:
    plain = _plain(_required(value, what), what)
    return _required(format(plain, spec) if spec else str(plain), what)


def _plain(value: Any, what: str) -> Any:
    """Return the value as one that prints the same in every process."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        raise ValueError(f"{what} is {value!r}: a truth value names nothing.")
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return value
    if isinstance(value, UUID):
        return value
    if isinstance(value, date | time):
        return value  # str() of a datetime is ISO with a blank in place of the T
    return _primary_key(value, what)


def _primary_key(value: Any, what: str) -> Any:
    from django.db.models import Model

    if isinstance(value, Model) and value.pk is not None and not value._state.adding:
        return _plain(_required(value.pk, what), what)
    kind = "an unsaved model instance" if isinstance(value, Model) else f"of type {type(value).__name__}"
    raise ValueError(
        f"{what} is {kind}. Use text, a number, a UUID, a date or a saved model instance, or give name= a callable."
    )


def _required(value: T, what: str) -> T:
    if value is None or value == "":
        raise ValueError(f"{what} is {value!r}: all calls without a value would share one lock.")
    return value
