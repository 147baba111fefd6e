"""The store contract.

A store keeps leases. Each verb below is one atomic step in one round trip, and looks only at names, secrets and
durations: the service above it cleans names, waits, retries and logs; guards count the time.

To every store applies:

- Exclusion. Of all that ask for a name at the same moment, one is granted. Nobody else is until the lease is released
  or has expired.
- Ownership is the ``owner``, a secret of one grant. It is compared in the same atomic step that changes the lease.
  ``holder`` is a label for people.
- Time is the store's own clock; durations in seconds cross this line, never dates. A lease is live until exactly its
  end; an expired one is as good as absent, and is not revived.
- Fences rise strictly with each grant of a name, over releases, expiries and pruning. The first one of a name is the
  store's clock in microseconds, so that a store that forgot everything does not start again from 1.
- ``None`` and ``False`` mean "somebody else has it". A store that fails raises `StoreUnavailable` with the driver's
  error as its cause.
- Names are compared code point by code point, and no character has a meaning.
- A store object is shared by all threads of a process, connects at its first use, and survives a fork.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from django_locks.exceptions import StoreUnavailable
from django_locks.findings import Finding
from django_locks.stores.waiting import Waiters, Watch
from django_locks.tasks import see_through
from django_locks.values import LeaseInfo

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

#: How a hold can end, as far as the store is told.
RELEASED, FAILED, BROKEN, RESUMED = "released", "failed", "broken", "resumed"

Claim = tuple[str, str, float]  #: name, owner, ttl


class Browsed(NamedTuple):
    """A page of live leases."""

    total: int  #: how many there are
    soon: int  #: how many of them end soon
    leases: list[LeaseInfo]


T = TypeVar("T")


class _Here(threading.local):
    #: Is this thread one of the package's own, and what for?
    own: Literal["", "renewal", "callers", "history"] = ""
    #: Is it asking a store just now?
    asking = False


here = _Here()


class Asking:
    """Marks the thread as one that asks a store, meanwhile."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before, here.asking = here.asking, True

    def __exit__(self, *error: object) -> None:
        here.asking = self._before


def _mark_thread() -> None:
    here.own = "callers"


def _new_threads() -> None:
    global _threads  # they start when they are needed
    _threads = ThreadPoolExecutor(4, thread_name_prefix="django_locks", initializer=_mark_thread)


_threads: ThreadPoolExecutor
_new_threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_threads)


class BaseStore:
    """What every store has. OPTIONS of the settings are the keyword-only parameters of a subclass' ``__init__``."""

    #: Does a lease exclude nobody outside this process?
    process_local = False
    #: In which of Django's DATABASES are the leases, if in any?
    database_alias: str | None = None

    def __init__(self, alias: str, location: Any = None, key_prefix: str = "") -> None:
        self.alias = alias
        self.location = location
        #: What all names given to this store begin with (``"stg:"``), for keys of its own beside the leases.
        self.key_prefix = key_prefix
        self.waiters = Waiters()

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        """Take the name for ``ttl`` seconds and return the fence, or ``None`` if somebody else has it.

        A refusal writes nothing. Asked again by the same owner while it holds the lease (its reply was lost), answers
        the same fence and counts the TTL anew.
        """
        raise NotImplementedError

    def renew(self, leases: Sequence[Claim]) -> set[str]:
        """Let each lease end ``ttl`` seconds from now, if it is live and its owner's; return the names that are.

        All of them in one round trip. Of one name, give one lease at the most.
        """
        raise NotImplementedError

    def release(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        """Free the name and return True, or False if it is not the owner's (any more), which changes nothing.

        With ``hold_for`` the name stays taken for that many seconds, without an owner. ``outcome`` is for people.
        """
        raise NotImplementedError

    def get(self, name: str) -> LeaseInfo | None:
        """Return the live lease of the name, or ``None``."""
        raise NotImplementedError

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """Yield all live leases whose name begins with ``prefix``, ordered by name where that is cheap."""
        raise NotImplementedError

    def browse(self, start: int, size: int, soon: float) -> Browsed:
        """Return a page of ``size`` live leases from number ``start`` on, for people who look at all of them.

        Ordered by name, or by their end where there are many and that is cheaper. ``soon`` is in seconds.
        """
        found = list(self.leases())
        return Browsed(len(found), sum(lease.remaining < soon for lease in found), found[start : start + size])

    def watch(self, name: str) -> Watch:
        """Return a context manager whose ``wait(timeout)`` returns when the name may be free.

        Who waits in this process is kept in ``waiters``. A store that can push gives it a `Push`.
        """
        return self.waiters.watch(name)

    def prune(self, older_than: float) -> int:
        """Forget names that have been free for longer than so many seconds, and return how many were forgotten.

        Never one that is held or kept.
        """
        raise NotImplementedError

    def count_free(self, older_than: float) -> int:
        """Return how many names `prune` would forget."""
        raise NotImplementedError

    def prepare(self) -> str:
        """Make what the store needs before its first use, once even if many processes ask; return what was made.

        For commands that may be the first to use it. Empty text: nothing was missing, or nothing can be done here.
        """
        return ""

    def diagnose(self) -> Iterator[Finding]:
        """Yield what a person should know about the server and its settings. Raises `StoreUnavailable`."""
        yield from ()

    def check(self) -> list[CheckMessage]:
        """Return messages for Django's system checks about this store's settings. Must not connect to anything."""
        return []

    def close(self) -> None:
        """Give back all connections. The store can be used again afterwards."""

    def is_confined(self) -> bool:
        """Are leases that the calling thread takes now seen by itself alone, as inside a ``TestCase``?

        Nobody could renew them in another thread, so nobody does, and their time stands still for their holder.
        """
        return False

    async def ais_confined(self) -> bool:
        return self.is_confined()

    def is_in_database(self, alias: str) -> bool:
        """Are the leases in the database of that alias of Django's DATABASES, so that `lock_row` can be used?"""
        return False

    def lock_row(self, alias: str, claim: Claim) -> bool:
        """In the transaction that is open on that database, lock the lease's row; return whether it is the owner's.

        Until the transaction ends, nobody takes the lease over. Where a database knows no locks on rows, it is locked
        for writing as a whole, and the lease is renewed. A database's own errors are passed on.
        """
        raise NotImplementedError

    def leave_thread(self) -> None:
        """Give back what the calling thread alone has opened, since it ends."""

    def see_through(self, coroutine: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return what awaits calls of the async twins below to their end, although the calling task is cancelled.

        The default gives them a task of their own. A store in which nobody cancels the running task, as
        `asyncio.timeout` does, returns a `see_through_here`, which is cheaper.
        """
        return see_through(coroutine)

    # The same for asyncio. A store whose driver is synchronous is asked in threads of its own, so that no other
    # synchronous work of the process waits for it.

    async def aacquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        return await self._in_thread(self.acquire, name, owner, ttl, holder)

    async def arenew(self, leases: Sequence[Claim]) -> set[str]:
        return await self._in_thread(self.renew, leases)

    async def arelease(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        return await self._in_thread(self.release, name, owner, hold_for, outcome)

    async def aget(self, name: str) -> LeaseInfo | None:
        return await self._in_thread(self.get, name)

    async def aleases(self, prefix: str = "") -> AsyncIterator[LeaseInfo]:
        for lease in await self._in_thread(lambda: list(self.leases(prefix))):
            yield lease

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(_threads, call, *args)

    def unavailable(self, verb: str, name: str, error: BaseException | str) -> StoreUnavailable:
        """Return the exception that says that the store could not do ``verb`` on ``name``: raise it from the cause."""
        what = f"{verb} {name!r}" if name else verb
        why = error if isinstance(error, str) else f"{type(error).__name__}: {error}".strip().rstrip(":")
        return StoreUnavailable(f"The lock store {self.alias!r} could not {what}: {why}", name=name, alias=self.alias)
