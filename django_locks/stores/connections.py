"""Which connection a statement of the database store goes to.

=================================  ===============================================================================
the calling thread is              the statement goes to
=================================  ===============================================================================
in autocommit                      its own connection: no second one is needed
inside ``atomic()``, or has        a private autocommit connection, so that the lease is seen by all at once, and
autocommit off                     neither undone nor broken by the caller's transaction
inside a ``TestCase``, or its      its own connection, in a savepoint: no other one would see what it sees, and
database lives in memory           whatever it writes is gone with the test
one of this package's own          a private connection, which nobody else's work can hold up
=================================  ===============================================================================

On a SQLite file there is no way out inside ``atomic()``: a second connection to it would wait for its own caller.
"""

from __future__ import annotations

import copy
import math
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from django_locks import clock
from django_locks.stores.base import here
from django_locks.transactions import is_in_testcase, is_in_transaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

MOST = 2  # private connections an alias and purpose: each is busy for one statement only
PATIENCE = 2.5  # seconds to wait for a free one, for an answer, and for a new connection unless OPTIONS say otherwise
IDLE = 1.0  # seconds until an unused one is closed
LOOK = 0.5  # seconds between two looks for those that are idle or hang
LINGER = 10  # looks without anything to do until the thread that looks ends

SQLITE_WAYS_OUT = (
    "The lock store {0!r} is in the SQLite file of the transaction that this thread has open: a second connection "
    "to it would wait for its own caller. Take the lock before atomic(), or give the leases a database file of "
    "their own by LOCATION in LOCKS."
)


def connection_to(alias: str) -> AbstractContextManager[BaseDatabaseWrapper]:
    """Return a context manager that enters with the connection for the calling thread's next statement.

    Raises TransactionManagementError at once on a SQLite file inside ``atomic()``.
    """
    callers = connections[alias]
    if is_confined(callers):
        return _savepoint(callers)
    if here.own:
        return _pool(alias, here.own).connection()
    if not is_in_transaction(callers):
        _used.add(alias)
        return nullcontext(callers) if callers.vendor == "sqlite" else _minder.minding(callers)
    if callers.vendor == "sqlite":
        raise TransactionManagementError(SQLITE_WAYS_OUT.format(alias))
    return _pool(alias, "callers").connection()


def is_confined(connection: BaseDatabaseWrapper) -> bool:
    """Does no other connection see what this one writes?"""
    in_memory = connection.vendor == "sqlite" and _lives_in_memory(connection.settings_dict)
    return in_memory or (bool(connection.atomic_blocks) and is_in_testcase(connection))


def may_be_confined(alias: str) -> bool:
    """Is it worth asking the thread in which Django's own connections are? Only tests and databases in memory are."""
    return _tests_are_running() or _lives_in_memory(connections.settings[alias])


def leave_thread(alias: str) -> None:
    """Close the calling thread's own connection; one in memory, too, which Django's own ``close`` leaves open."""
    from django.db.backends.base.base import BaseDatabaseWrapper

    BaseDatabaseWrapper.close(connections[alias])


def close_private(alias: str) -> None:
    """Close the private connections that are not in use."""
    for (other, _), pool in list(_pools.items()):
        if other == alias:
            pool.close_idle(clock.now())


def _lives_in_memory(settings: dict[str, Any]) -> bool:
    if not settings["ENGINE"].endswith("sqlite3"):
        return False
    name = str(settings["NAME"])
    return name == ":memory:" or "mode=memory" in name


def _tests_are_running() -> bool:
    from django.test import utils

    return hasattr(utils._TestState, "saved_data")


@contextmanager
def _savepoint(connection: BaseDatabaseWrapper) -> Iterator[BaseDatabaseWrapper]:
    if not connection.in_atomic_block:
        yield connection
        return
    with transaction.atomic(using=connection.alias):
        yield connection


class _Pool:
    """A few private connections to one database, last in, first out; closed when idle."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._places = threading.BoundedSemaphore(MOST)
        self._idle: list[tuple[BaseDatabaseWrapper, float]] = []

    @contextmanager
    def connection(self) -> Iterator[BaseDatabaseWrapper]:
        if not self._places.acquire(timeout=PATIENCE):
            raise OperationalError(f"All {MOST} private connections to {self.alias!r} are busy for {PATIENCE} s.")
        try:
            private = self._take()
            with _minder.minding(private), self._in_use(private):
                yield private
        finally:
            self._places.release()

    @contextmanager
    def _in_use(self, private: BaseDatabaseWrapper) -> Iterator[None]:
        connections[private.alias] = private  # the ORM finds it by its alias, in this thread
        try:
            yield
        finally:
            del connections[private.alias]
            self._give_back(private)

    def close_idle(self, before: float) -> bool:
        """Close those unused since then, and return whether others are left."""
        for entry in [entry for entry in self._idle if entry[1] <= before]:
            try:
                self._idle.remove(entry)
            except ValueError:  # taken in the meantime
                continue
            entry[0].close()
        return bool(self._idle)

    def disinherit(self) -> None:
        """Forget, in a forked child, what belongs to the parent."""
        _inherited.extend(private for private, _ in self._idle)
        self.__init__(self.alias)  # type: ignore[misc]

    def _take(self) -> BaseDatabaseWrapper:
        wanted = connections[self.alias].settings_dict
        while self._idle:
            try:
                private, _ = self._idle.pop()
            except IndexError:  # closed in the meantime
                break
            if all(private.settings_dict[key] == wanted[key] for key in ("NAME", "HOST", "PORT", "USER")):
                return private
            private.close()
        return private_copy(self.alias)

    def _give_back(self, private: BaseDatabaseWrapper) -> None:
        if _tests_are_running():
            private.close()  # a test database cannot be dropped while a connection to it is open
        elif private.connection is not None:
            self._idle.append((private, clock.now()))


def private_copy(alias: str) -> BaseDatabaseWrapper:
    """Return a new connection to the database, not yet open, which is in autocommit and used by any thread."""
    callers = connections[alias]
    # A pool is keyed by alias: under the same one, a caller that holds its last connection would wait for itself.
    private = callers.copy(alias=f"{callers.alias}__locks")
    settings = private.settings_dict
    settings.update(AUTOCOMMIT=True, ATOMIC_REQUESTS=False, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=False)
    settings["OPTIONS"] = _private_options(callers.vendor, copy.copy(settings.get("OPTIONS") or {}))
    private.inc_thread_sharing()
    return private


def _private_options(vendor: str, options: dict[str, Any]) -> dict[str, Any]:
    if vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        options.pop("pool", None)
        options["isolation_level"] = IsolationLevel.READ_COMMITTED
        return {"connect_timeout": math.ceil(PATIENCE), **options}
    if vendor == "mysql":
        options["isolation_level"] = "read committed"
        timeouts = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), math.ceil(PATIENCE))
        return {**timeouts, **options}
    return options


class _Call:
    """A statement on its way: a context manager, which enters with the connection."""

    __slots__ = ("_calls", "connection", "looks")

    def __init__(self, connection: BaseDatabaseWrapper, calls: dict[int, _Call]) -> None:
        self.connection = connection
        self.looks = 0  # not a time: whoever was suspended has his answer when he wakes
        self._calls = calls

    def __enter__(self) -> BaseDatabaseWrapper:
        return self.connection

    def __exit__(self, *error: object) -> None:
        del self._calls[id(self)]


class _Minder:
    """A thread that hangs up where no answer comes, closes what is idle, and ends when it has nothing to do."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._running = False
        self._calls: dict[int, _Call] = {}

    def minding(self, connection: BaseDatabaseWrapper) -> _Call:
        call = _Call(connection, self._calls)
        self._calls[id(call)] = call  # before the look at `_running`: whoever ends looks the other way round
        if not self._running:
            self._start()
        return call

    def _start(self) -> None:
        with self._turn:
            if not self._running:
                threading.Thread(target=self._run, name="django_locks minder", daemon=True).start()
                self._running = True

    def _run(self) -> None:
        pause, quiet = threading.Event(), 0
        while True:
            pause.wait(LOOK)
            try:
                quiet = 0 if self._look() else quiet + 1
            except Exception:  # whatever a driver raises: without this thread, calls would hang for ever
                quiet = 0
            if quiet > LINGER and self._ends():
                return

    def _ends(self) -> bool:
        with self._turn:
            self._running = False
            self._running = bool(self._calls)
            return not self._running

    def _look(self) -> bool:
        calls = list(self._calls.values())
        for call in calls:
            call.looks += 1
            if call.looks > PATIENCE / LOOK:
                _hang_up(call.connection)
        left = [pool.close_idle(clock.now() - IDLE) for pool in list(_pools.values())]
        return bool(calls) or any(left)


def _hang_up(connection: Any) -> None:
    """Let the thread that waits for the connection's answer have an error instead.

    tcp_user_timeout and its like notice a dead host, but no process that is stopped, nor a pooler that has no server.
    """
    driver = connection.connection
    with suppress(Exception):  # it has been closed in the meantime, is being made, or has no line at all
        number = driver.fileno() if hasattr(driver, "fileno") else driver._sock.fileno()
        with socket.socket(fileno=os.dup(number)) as line:
            line.shutdown(socket.SHUT_RDWR)


_pools: dict[tuple[str, str], _Pool] = {}
_minder = _Minder()
_used: set[str] = set()  # aliases whose own connections of the callers were used
_inherited: list[object] = []  # a child must not close its parent's connections, not even by garbage collection


def _pool(alias: str, purpose: str) -> _Pool:
    pool = _pools.get((alias, purpose))
    return pool if pool is not None else _pools.setdefault((alias, purpose), _Pool(alias))


def _after_fork() -> None:
    global _minder
    _minder = _Minder()
    for pool in _pools.values():
        pool.disinherit()
    for alias in _used:
        callers = getattr(connections._connections, alias, None)  # type: ignore[attr-defined]
        if callers is not None and callers.connection is not None and not is_in_transaction(callers):
            _inherited.append(callers.connection)
            callers.connection = None  # parent and child would read each other's answers


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
