"""Releases pushed by Redis: one subscriber connection for all waiters of a process.

Without it, waiters look again and again; so they do until the server has confirmed their subscription, and while the
connection is lost. A message that is lost all the same costs no more than the rest of the holder's TTL.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from .waiting import Waiters, keep_listening

IDLE = 1.0  # seconds without a waiter until the connection is closed
PING_EVERY, PING_ANSWER = 10.0, 3.0  # seconds: a connection that died without a word is found out


class RedisPush:
    """Subscribes to the channels of the names that are waited for."""

    def __init__(self, waiters: Waiters, connect: Callable[[], Any], channel: Callable[[str], bytes]) -> None:
        self._waiters = waiters
        self._connect = connect
        self._channel = channel
        self.forget()

    def forget(self) -> None:
        """Forget the parent's connection and thread, in a forked child."""
        self._turn = threading.RLock()
        self._names: dict[bytes, str] = {}  # wanted, by channel
        self._watched: set[str] = set()  # confirmed by the server
        self._connection: Any = None
        self._running = False

    def want(self, name: str) -> None:
        channel = self._channel(name)
        with self._turn:
            self._names[channel] = name
            if not self._running:
                self._running = True
                threading.Thread(
                    target=keep_listening, args=(self._listen, self._lose), name="django_locks subscriber", daemon=True
                ).start()
            else:
                self._send("SUBSCRIBE", channel)

    def unwant(self, name: str) -> None:
        channel = self._channel(name)
        with self._turn:
            self._names.pop(channel, None)
            self._watched.discard(name)
            self._send("UNSUBSCRIBE", channel)

    def is_watching(self, name: str) -> bool:
        return name in self._watched

    def _send(self, *command: Any) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # the reader finds the connection broken, and makes another
                self._connection.send_command(*command)

    def _listen(self) -> None:
        """Pass on what is pushed, until nobody has waited for a while. Raises what the driver raises."""
        connection = self._connect()
        connection.connect()
        try:
            with self._turn:
                self._connection = connection
                if self._names:
                    connection.send_command("SUBSCRIBE", *self._names)
            self._read(connection)
        finally:
            connection.disconnect()

    def _read(self, connection: Any) -> None:
        heard = busy = time.monotonic()
        pinged = False
        while True:
            now = time.monotonic()
            if connection.can_read(timeout=IDLE / 2):
                self._receive(connection.read_response(disable_decoding=True))
                heard, pinged = now, False
            elif now - heard > PING_EVERY + PING_ANSWER:
                raise TimeoutError("The subscriber connection has died.")
            elif now - heard > PING_EVERY and not pinged:
                pinged = True
                with self._turn:
                    connection.send_command("PING")
            with self._turn:
                if self._names:
                    busy = now
                elif now - busy > IDLE:
                    self._connection, self._running = None, False
                    return

    def _receive(self, push: Any) -> None:
        if not isinstance(push, list) or len(push) < 2:
            return
        kind, channel = push[0], push[1]
        name = self._names.get(channel)
        if name is None:
            return
        if kind == b"subscribe":
            self._watched.add(name)
        elif kind == b"unsubscribe":
            self._watched.discard(name)
        self._waiters.wake(name)

    def _lose(self) -> None:
        with self._turn:
            self._connection = None
            self._watched.clear()
            names = list(self._names.values())
        for name in names:
            self._waiters.wake(name)
