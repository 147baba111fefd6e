"""Releases pushed by Redis: one subscriber connection for all waiters of a process, on a cluster one a node in use.

Without it, waiters look again and again; so they do until the server has confirmed their subscription, and while the
connection is lost. A message that is lost all the same costs no more than the rest of the holder's TTL.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .waiting import Waiters, keep_listening

IDLE = 1.0  # seconds without a waiter until the connection is closed
PING_EVERY, PING_ANSWER = 10.0, 3.0  # seconds: a connection that died without a word is found out


class Verbs(NamedTuple):
    """The commands of one kind of channel."""

    subscribe: str
    unsubscribe: str


#: A message on a channel goes to all nodes of a cluster; one on a sharded channel stays where its slot is served.
CHANNELS = Verbs("SUBSCRIBE", "UNSUBSCRIBE")
SHARDED_CHANNELS = Verbs("SSUBSCRIBE", "SUNSUBSCRIBE")


class RedisPush:
    """Subscribes at one server to the channels of the names that are waited for.

    ``moved`` is called, in a thread of its own, when the server serves a channel no more.
    """

    def __init__(
        self,
        waiters: Waiters,
        connect: Callable[[], Any],
        channel: Callable[[str], bytes],
        verbs: Verbs = CHANNELS,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._waiters = waiters
        self._connect = connect
        self._channel = channel
        self._verbs = verbs
        self._moved = moved
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
                self._send(self._verbs.subscribe, channel)

    def unwant(self, name: str) -> None:
        channel = self._channel(name)
        with self._turn:
            self._names.pop(channel, None)
            self._watched.discard(name)
            self._send(self._verbs.unsubscribe, channel)

    def is_watching(self, name: str) -> bool:
        return name in self._watched

    def _send(self, *command: Any) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # the reader finds the connection broken, and makes another
                self._connection.send_command(*command)

    def _listen(self) -> None:
        """Pass on what is pushed, until nobody has waited for a while. Raises what the driver raises."""
        with self._turn:
            if not self._names:  # all gave up while the server could not be reached
                self._running = False
                return
        connection = self._connect()
        connection.connect()
        try:
            with self._turn:
                self._connection = connection
                for channel in self._names:  # one by one: those of sharded ones may lie in many slots
                    connection.send_command(self._verbs.subscribe, channel)
            self._read(connection)
        finally:
            connection.disconnect()

    def _read(self, connection: Any) -> None:
        from redis.exceptions import ResponseError  # not everybody has it

        heard = busy = time.monotonic()
        pinged = False
        while True:
            now = time.monotonic()
            if connection.can_read(timeout=IDLE / 2):
                try:
                    self._receive(connection.read_response(disable_decoding=True))
                except ResponseError:  # MOVED, or it may not subscribe: whose turn it is goes on looking
                    self._moved()
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
        if kind in (b"subscribe", b"ssubscribe"):
            self._watched.add(name)
        elif kind in (b"unsubscribe", b"sunsubscribe"):  # unasked: the slot has moved
            self._watched.discard(name)
            self._moved()
        self._waiters.wake(name)

    def _lose(self) -> None:
        with self._turn:
            self._connection = None
            self._watched.clear()
            names = list(self._names.values())
        for name in names:
            self._waiters.wake(name)


class ClusterPush:
    """Subscribes at each node of a cluster to the names whose slots it serves.

    ``node_of`` says which node serves a channel, without I/O, as far as is known: None until ``learn`` has been called.
    """

    def __init__(
        self,
        waiters: Waiters,
        node_of: Callable[[bytes], Any],
        learn: Callable[[], None],
        connect: Callable[[Any], Any],
        channel: Callable[[str], bytes],
    ) -> None:
        self._waiters = waiters
        self._node_of = node_of
        self._learn = learn
        self._connect = connect
        self._channel = channel
        self.forget()

    def forget(self) -> None:
        """Forget the parent's connections and threads, in a forked child."""
        self._turn = threading.RLock()
        self._nodes: dict[str, RedisPush] = {}
        self._places: dict[str, RedisPush | None] = {}  # by name
        self._learning = False

    def want(self, name: str) -> None:
        with self._turn:
            self._places[name] = None
            self._place(name)

    def unwant(self, name: str) -> None:
        with self._turn:
            place = self._places.pop(name, None)
            if place is not None:
                place.unwant(name)

    def is_watching(self, name: str) -> bool:
        with self._turn:
            place = self._place(name)
            return place is not None and place.is_watching(name)

    def _place(self, name: str) -> RedisPush | None:
        """Return where the name is waited for. It goes where its slot is served now."""
        node, before = self._node_of(self._channel(name)), self._places.get(name)
        if node is None:
            self._learn_again()
            return before
        place = self._nodes.get(node.name)
        if place is None:
            place = self._nodes[node.name] = RedisPush(
                self._waiters, lambda: self._connect(node), self._channel, SHARDED_CHANNELS, self._learn_again
            )
        if place is not before and name in self._places:
            if before is not None:
                before.unwant(name)
            self._places[name] = place
            place.want(name)
        return place

    def _learn_again(self) -> None:
        with self._turn:
            if self._learning or not self._places:
                return
            self._learning = True
        threading.Thread(target=self._learn_now, name="django_locks cluster", daemon=True).start()

    def _learn_now(self) -> None:
        # Whether or not it works, waiters look by themselves until they are subscribed, and look here each time.
        with contextlib.suppress(Exception):
            self._learn()
        self._learning = False
