"""Releases pushed by PostgreSQL: one LISTEN connection for all waiters of a process. psycopg 3 only.

NOTIFY serialises commits, so a release notifies only when somebody waits. Whoever does holds a shared advisory lock on
the name's hash, in the session that listens; a release that cannot have the exclusive one for a moment knows. This
needs a session of its own, and so no pooler in transaction mode.
"""

from __future__ import annotations

import os
import select
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django_locks.stores.sql.postgresql import PostgreSQLStatements
from django_locks.stores.waiting import Waiters, keep_listening

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

CHANNEL = "django_locks"
LOCK_CLASS = zlib.crc32(b"django_locks") & 0x7FFFFFFF
IDLE = 1.0  # seconds without a waiter until the connection is closed

RELEASE = """
WITH released AS (
  UPDATE {table} SET {owner} = '', {released_at} = {now}, {outcome} = %(outcome)s, {expires_at} = {now} + %(hold_for)s
  WHERE {name} = %(name)s AND {owner} = %(owner)s AND {live}
  RETURNING {name} AS name)
SELECT
  CASE WHEN pg_try_advisory_xact_lock(%(lock_class)s, %(lock_key)s) THEN 1
    WHEN pg_notify(%(channel)s, name) IS NULL THEN 2 ELSE 2 END,
  CASE WHEN %(hold_for)s <= 0 THEN set_config('synchronous_commit', 'off', true) END
FROM released"""  # does not wait for the disk: see the functions of the migrations


CALL_RELEASE = """
SELECT django_locks_lease_release_and_notify(
  %(name)s::varchar, %(owner)s::varchar, %(hold_for)s::bigint, %(outcome)s::varchar,
  %(channel)s::varchar, %(lock_class)s::integer, %(lock_key)s::integer)"""


def lock_key(name: str) -> int:
    """Return the name's hash as a signed number of 32 bits, the same in every process."""
    value = zlib.crc32(name.encode())
    return value - 2**32 if value >= 2**31 else value


class NotifyingStatements(PostgreSQLStatements):
    """PostgreSQL's statements, with a release that wakes those who wait."""

    def __init__(self, connection: BaseDatabaseWrapper, waiters: Waiters) -> None:
        super().__init__(connection)
        self._waiters = waiters

    def release(self, connection: BaseDatabaseWrapper, name: str, owner: str, hold_for: float, outcome: str) -> bool:
        parameters = {
            "name": name,
            "owner": owner,
            "hold_for": self._kept(hold_for),
            "outcome": outcome,
            "lock_class": LOCK_CLASS,
            "lock_key": lock_key(name),
            "channel": CHANNEL,
        }
        rows = self._call(connection, CALL_RELEASE, parameters)
        if rows is None:
            rows = self._read(connection, self._fill(RELEASE), parameters)
        answer = rows[0][0] if rows else 0
        if answer > 1:
            self._waiters.rivals.note_release(name)
        return bool(answer)


class PostgreSQLPush:
    """Listens for the releases of the names that are waited for."""

    def __init__(self, waiters: Waiters, connect: Callable[[], BaseDatabaseWrapper]) -> None:
        self._waiters = waiters
        self._connect = connect
        self.forget()

    def forget(self) -> None:
        """Forget the parent's connection and thread, in a forked child."""
        self._turn = threading.RLock()
        self._names: set[str] = set()  # wanted
        self._watched: set[str] = set()  # whose advisory lock is held
        self._changes: deque[tuple[str, bool]] = deque()
        self._bell: int | None = None  # the end of a pipe on which the thread is rung up
        self._running = False

    def want(self, name: str) -> None:
        with self._turn:
            self._names.add(name)
            self._change(name, True)
            if not self._running:
                self._running = True
                threading.Thread(
                    target=keep_listening, args=(self._listen, self._lose), name="django_locks listener", daemon=True
                ).start()

    def unwant(self, name: str) -> None:
        with self._turn:
            self._names.discard(name)
            self._watched.discard(name)
            self._change(name, False)

    def is_watching(self, name: str) -> bool:
        return name in self._watched

    def _change(self, name: str, wanted: bool) -> None:
        self._changes.append((name, wanted))
        if self._bell is not None:
            os.write(self._bell, b".")

    def _listen(self) -> None:
        """Pass on what is notified, until nobody has waited for a while. Raises what the driver raises."""
        with self._turn:
            if not self._names:  # all gave up while the server could not be reached
                self._running = False
                return
        wrapper = self._connect()
        bell, ring = os.pipe()
        try:
            wrapper.ensure_connection()
            connection: Any = wrapper.connection
            connection.execute(f"LISTEN {CHANNEL}")
            with self._turn:
                self._changes = deque((name, True) for name in self._names)
                self._bell = ring
            self._serve(connection, bell)
        finally:
            with self._turn:
                self._bell = None
            os.close(bell)
            os.close(ring)
            wrapper.close()

    def _serve(self, connection: Any, bell: int) -> None:
        busy = time.monotonic()
        while True:
            self._apply_changes(connection)
            ready, _, _ = select.select([connection.fileno(), bell], [], [], IDLE / 2)
            if bell in ready:
                os.read(bell, 4096)
            for notification in connection.notifies(timeout=0):
                self._waiters.wake(notification.payload)
            with self._turn:
                if self._names:
                    busy = time.monotonic()
                elif time.monotonic() - busy > IDLE:
                    self._running = False
                    return

    def _apply_changes(self, connection: Any) -> None:
        while self._changes:
            name, wanted = self._changes.popleft()
            call = "pg_advisory_lock_shared" if wanted else "pg_advisory_unlock_shared"
            connection.execute(f"SELECT {call}(%s, %s)", [LOCK_CLASS, lock_key(name)])
            if wanted:
                with self._turn:
                    if name in self._names:
                        self._watched.add(name)
                self._waiters.wake(name)

    def _lose(self) -> None:
        with self._turn:
            self._watched.clear()
            names = list(self._names)
        for name in names:
            self._waiters.wake(name)
