"""Stores that fail, are slow or forget on command: for faults that a server cannot be made to show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from django_locks.stores.base import BaseStore


class Fault(Exception):
    """What a driver would raise."""


@contextlib.contextmanager
def patched(store: BaseStore, verb: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Let ``store.verb(*args)`` be ``replacement(original, *args)`` for a while."""
    original = getattr(store, verb)
    setattr(store, verb, lambda *args, **kwargs: replacement(original, *args, **kwargs))
    try:
        yield
    finally:
        delattr(store, verb)


def failing(store: BaseStore, *verbs: str, times: int | None = None) -> contextlib.ExitStack:
    """Let the verbs fail before anything has happened, the first ``times`` calls or always."""
    return _stack(store, verbs, times, after=False)


def forgetful(store: BaseStore, *verbs: str, times: int | None = None) -> contextlib.ExitStack:
    """Let the verbs happen, and their replies get lost."""
    return _stack(store, verbs, times, after=True)


def _stack(store: BaseStore, verbs: tuple[str, ...], times: int | None, after: bool) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for verb in verbs:
        stack.enter_context(patched(store, verb, _fault(store, verb, times, after)))
    return stack


def _fault(store: BaseStore, verb: str, times: int | None, after: bool) -> Callable[..., Any]:
    left = [float("inf") if times is None else times]

    def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if left[0] <= 0:
            return original(*args, **kwargs)
        left[0] -= 1
        if after:
            original(*args, **kwargs)
        cause = Fault("connection reset")
        raise store.unavailable(verb, args[0] if args and isinstance(args[0], str) else "", cause) from cause

    return call
