"""``with_lock``: run a function only while it holds a lock.

Works over any object that has the service's ``lock()``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from . import signals
from .commands import command_of, edges
from .exceptions import LockNotAcquired
from .logs import log_extra
from .naming import constant_name, namer
from .orders import is_task, refuse_wrong_order
from .values import Name, describe_lease

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

logger = logging.getLogger("django_locks")

OnBusy = Literal["skip", "raise"] | Callable[[LockNotAcquired], Any]


class Skipped(str):
    """The type of `SKIPPED`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "SKIPPED"

    def __reduce__(self) -> str:
        return "SKIPPED"  # pickle and copy find the one object by this name in this module


#: What a decorated function returns when somebody else held its lock: falsy, one object, and still equal to itself
#: after a trip through JSON.
SKIPPED = Skipped("django_locks.SKIPPED")


class LockSource(Protocol):
    """What `Decorator` needs: the service, or anything that has its ``lock()``."""

    @property
    def lock(self) -> Callable[..., Any]: ...  # returns a block for both `with` and `async with`


class Decorator:
    """What `decorate` returns. ``options`` are those of the source's ``lock()``."""

    def __init__(self, source: LockSource, name: Any, on_busy: OnBusy, options: dict[str, Any]) -> None:
        if not (on_busy in ("skip", "raise") or callable(on_busy)):
            raise ValueError(f"on_busy must be 'skip', 'raise' or a callable, not {on_busy!r}.")
        self.source = source
        self.name = name
        self.on_busy = on_busy
        self.options = options

    def __call__(self, target: Any) -> Any:
        refuse_wrong_order(target)
        if is_task(target):
            return dataclasses.replace(target, func=self(target.func))
        if isinstance(target, staticmethod | classmethod):
            return type(target)(self(target.__func__))
        if isinstance(target, type):
            return self._decorate_command(target)
        _refuse_unsupported(target)
        return self._decorate_function(target, _qualified_name(target))

    def _decorate_command(self, command: type) -> type:
        from django.core.management.base import BaseCommand

        if not issubclass(command, BaseCommand):
            raise TypeError(
                f"with_lock takes a management command's class, but no other: {command!r}. Decorate its method."
            )
        command.handle = self._decorate_function(command.handle, _qualified_name(command))  # type: ignore[method-assign]
        return command

    def _decorate_function(self, function: Callable[..., Any], default_name: str) -> Callable[..., Any]:
        template, lock_of = self._lock_of(function, default_name)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            lock = lock_of(args, kwargs)
            with edges(command_of(args)) as release_begins, ExitStack() as stack:
                try:
                    stack.enter_context(lock)
                except LockNotAcquired as busy:
                    return self._busy(busy, default_name, template, args)
                stack.callback(release_begins)
                return function(*args, **kwargs)

        async def arun(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            lock = lock_of(args, kwargs)
            async with AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(lock)
                except LockNotAcquired as busy:
                    result = self._busy(busy, default_name, template, args)
                    return await result if inspect.isawaitable(result) else result
                return await function(*args, **kwargs)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return run(args, kwargs)

        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            return await arun(args, kwargs)

        return _disguise(async_wrapper if _is_coroutine_function(function) else wrapper, function)

    def _lock_of(self, function: Callable[..., Any], default_name: str) -> tuple[str, Callable[[Any, Any], Any]]:
        constant = constant_name(self.name, default_name)
        if constant is not None:
            lock = self.source.lock(Name(constant, constant), **self.options)
            return constant, lambda args, kwargs: lock
        name_of = namer(self.name, function)
        template = self.name if isinstance(self.name, str) else default_name
        return template, lambda args, kwargs: self.source.lock(Name(name_of(args, kwargs), template), **self.options)

    def _busy(self, busy: LockNotAcquired, what: str, template: str, args: tuple[Any, ...]) -> Any:
        if self.on_busy == "raise":
            raise busy
        if callable(self.on_busy):
            return self.on_busy(busy)
        _report_skip(busy, what, template, command_of(args))
        return SKIPPED


def _report_skip(busy: LockNotAcquired, what: str, template: str, command: BaseCommand | None) -> None:
    lease = busy.lease
    who = describe_lease(lease)
    logger.info(
        "Skipped %s: the lock %r (store %r) %s.",
        what,
        busy.name,
        busy.alias,
        who,
        extra=log_extra(
            busy.name,
            busy.alias,
            holder=lease.holder if lease else None,
            fence=lease.fence if lease else None,
            template=template,
        ),
    )
    if command is not None:
        command.stdout.write(f"Skipped: the lock {busy.name!r} {who}.")
    signals.lock_skipped.send_robust(Decorator, alias=busy.alias, name=busy.name, template=template, lease=lease)


def _refuse_unsupported(target: Any) -> None:
    if not callable(target):
        raise TypeError(f"with_lock takes a function, a method or a management command, not {target!r}.")
    function = _called(target)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"with_lock cannot take the generator function {_qualified_name(target)}: its body runs after the call has "
            "returned. Put `with locks.lock(…):` inside of it."
        )


def _is_coroutine_function(target: Any) -> bool:
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(_called(target))


def _called(target: Any) -> Any:
    """Return the function behind a callable object."""
    return target if inspect.isroutine(target) or isinstance(target, functools.partial) else type(target).__call__


def _qualified_name(target: Any) -> str:
    if isinstance(target, functools.partial):
        return _qualified_name(target.func)
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"


def _disguise(wrapper: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper in the function's guise. It may use no globals: they become the function's own."""
    # Its annotations may be text, which only they can resolve.
    space = getattr(function, "__globals__", wrapper.__globals__)
    disguised: Any = FunctionType(wrapper.__code__, space, wrapper.__name__, closure=wrapper.__closure__)
    functools.update_wrapper(disguised, function)
    # Whoever follows __wrapped__, as task queues and debuggers do, would run the body without the lock.
    del disguised.__wrapped__
    disguised.__locked__ = function
    disguised.__signature__ = inspect.signature(function)
    decorated: Callable[..., Any] = disguised
    return decorated
