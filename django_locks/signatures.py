"""What ``with_lock`` makes of the types of what it decorates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound="BaseCommand")
S = TypeVar("S")
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)


class TaskLike(Protocol):
    """A Task of ``django.tasks`` or of its backport."""

    @property
    def func(self) -> Callable[..., Any]: ...
    @property
    def enqueue(self) -> Callable[..., Any]: ...


TaskT = TypeVar("TaskT", bound=TaskLike)


class Locking(Protocol[X_co]):
    """A decorator that keeps the parameters; a call returns what it did, or an ``X`` when the lock is busy."""

    @overload
    def __call__(self, target: type[C], /) -> type[C]: ...
    @overload
    def __call__(
        self, target: staticmethod[P, Coroutine[Any, Any, R]], /
    ) -> staticmethod[P, Coroutine[Any, Any, R | X_co]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a static method can be called, too
        self, target: staticmethod[P, R], /
    ) -> staticmethod[P, R | X_co]: ...
    @overload
    def __call__(
        self, target: classmethod[S, P, Coroutine[Any, Any, R]], /
    ) -> classmethod[S, P, Coroutine[Any, Any, R | X_co]]: ...
    @overload
    def __call__(self, target: classmethod[S, P, R], /) -> classmethod[S, P, R | X_co]: ...
    @overload
    def __call__(
        self, target: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | X_co]]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> Callable[P, R | X_co]: ...
    @overload
    def __call__(self, target: TaskT, /) -> TaskT: ...


class AsyncLocking(Protocol[X_co]):
    """The same, where ``on_busy`` is a coroutine function, which only coroutine functions can wait for."""

    def __call__(
        self, target: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | X_co]]: ...
