"""Links to Redis for asyncio: the same as in `redis_client`, over the driver's other half."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import redis.asyncio as driver
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as NoAnswer

from django_locks.tasks import see_through

from .redis_wire import Call

#: Options of the synchronous client that have no meaning for scripts, or none where retries are counted.
NEEDLESS = {"cache", "cache_config", "retry_on_timeout", "dynamic_startup_nodes"}


class AsyncLink(Protocol):
    """A client of one event loop that runs scripts."""

    async def run(self, call: Call) -> Any:
        """Run one script and return its reply, whose texts are bytes."""

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts and return their replies in order."""

    async def aclose(self) -> None:
        """Close all connections. One that is used afterwards is closed after its use."""

    def abandon(self) -> None:
        """Close all sockets after the event loop."""


class AsyncSingleLink:
    """The link to one server.

    It measures the time itself, with one timer a command. The driver would wait for the write with
    ``asyncio.wait_for``, which on Python 3.11 makes a task for it, and may swallow a cancellation. And it keeps
    connections between commands, since the pool's own bookkeeping takes a sixth of the time of a command.
    """

    def __init__(
        self, client: driver.Redis, timeout: float | None, patience: float | None, sentinel: Sentinel | None = None
    ) -> None:
        self._client = client  # holds the pool, which it closes when it is dropped
        self._pool: Any = client.connection_pool
        self._timeout = timeout
        self._patience = patience  # until a connection is there, which may take sentinels and a handshake
        self._sentinel = sentinel
        self._idle: list[Any] = []  # in use, as the pool sees it, as the next
        self._worn_out: list[Any] = []
        self._closing = False

    async def run(self, call: Call) -> Any:
        connection = self._idle_one() or await self._new_one()
        limit = _Limit(connection, self._timeout)
        try:
            return await _reply(connection, call)
        except Exception:
            if limit.passed:
                raise NoAnswer("The server did not answer in time.") from None
            raise
        finally:
            limit.lift()
            self._idle.append(connection)
            if self._closing:
                await self._disconnect()

    def _idle_one(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if _is_usable(connection):
                return connection
            self._worn_out.append(connection)
        return None

    async def _new_one(self) -> Any:
        made: list[Any] = []
        try:
            await see_through(self._connect(made))
        except asyncio.CancelledError:
            self._idle += made
            raise
        return made[0]

    async def _connect(self, made: list[Any]) -> None:
        while self._worn_out:
            await self._put_away(self._worn_out.pop())
        try:
            async with asyncio.timeout(self._patience):
                made.append(await self._pool.get_connection())
        except TimeoutError:
            raise NoAnswer("The server did not accept a connection in time.") from None

    async def _put_away(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)
        await self._pool.release(connection)

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        return [await self.run(call) for call in calls]

    async def aclose(self) -> None:
        self._closing = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        idle, self._idle, self._worn_out = [*self._idle, *self._worn_out], [], []
        await _disconnect(idle + [connection for pool in self._pools() for connection in pool._available_connections])
        for connection in idle:
            await self._put_away(connection)

    def abandon(self) -> None:
        for pool in self._pools():
            _abandon([*pool._available_connections, *pool._in_use_connections])

    def _pools(self) -> list[Any]:
        sentinels = self._sentinel.sentinels if self._sentinel else ()
        return [self._pool, *[client.connection_pool for client in sentinels]]


def _is_usable(connection: Any) -> bool:
    if not connection.is_connected or connection._reader.at_eof() or connection._writer.is_closing():
        return False
    # Has the server announced that it moves away? redis-py knows of that since version 7.
    return not getattr(connection, "should_reconnect", bool)()


class _Limit:
    """Breaks the connection off when time is up, so that whoever waits for it has an error.

    `asyncio.timeout` would cancel the task, which nobody hears in `see_through_here`.
    """

    def __init__(self, connection: Any, seconds: float | None) -> None:
        self.passed = False
        self._connection = connection
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._pass)

    def lift(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self) -> None:
        self.passed = True
        if self._connection._writer is not None:
            self._connection._writer.transport.abort()


async def _reply(connection: Any, call: Call) -> Any:
    """Ask and answer. The driver itself closes a connection whose reply was not read to its end."""
    script, arguments, confirm = call
    try:
        await connection.send_command("EVALSHA", script.sha, *arguments)
        reply = await connection.read_response(disable_decoding=True)
    except NoScriptError:
        await connection.send_command("EVAL", script.source, *arguments)
        reply = await connection.read_response(disable_decoding=True)
    if confirm is None or reply is None:
        return reply
    await connection.send_command("WAIT", *confirm)
    return reply, await connection.read_response()


class AsyncClusterLink:
    """The link to a cluster: a call goes where its first key lives."""

    def __init__(self, client: RedisCluster) -> None:
        self.client: Any = client
        self._closing = False

    async def run(self, call: Call) -> Any:
        # Seen through, since the driver waits with `asyncio.wait_for`, which on Python 3.11 may swallow a cancellation.
        try:
            return await see_through(self._run(call))
        finally:
            if self._closing:
                await self._disconnect()

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts, at all nodes at once. A failing node does not keep the other nodes from theirs."""
        await see_through(self.client.initialize())
        replies: list[Any] = [None] * len(calls)
        nodes: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            nodes.setdefault(self.client.get_node_from_key(call.arguments[1]).name, []).append(place)

        async def run_in_turn(places: list[int]) -> None:
            for place in places:
                replies[place] = await self.run(calls[place])

        errors = await asyncio.gather(*map(run_in_turn, nodes.values()), return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error
        return replies

    async def _run(self, call: Call) -> Any:
        script, arguments, _ = call
        await self.client.initialize()  # else the driver asks any node, which answers MOVED
        try:
            return await self.client.execute_command("EVALSHA", script.sha, *arguments, NEVER_DECODE=True)
        except NoScriptError:
            return await self.client.execute_command("EVAL", script.source, *arguments, NEVER_DECODE=True)

    async def aclose(self) -> None:
        self._closing = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        self.client._initialize = True  # as its aclose() does, which would break off what is on its way
        await _disconnect([connection for node in self._nodes() for connection in node._free])

    def abandon(self) -> None:
        self.client._initialize = True
        for node in self._nodes():
            _abandon(node._connections)

    def _nodes(self) -> list[Any]:
        manager = self.client.nodes_manager
        return [*manager.nodes_cache.values(), *manager.startup_nodes.values()]


async def _disconnect(connections: Sequence[Any]) -> None:
    """Close idle connections: all of them at once, since the loop may end at any await, and only then wait for it."""
    writers = [connection._writer for connection in connections if connection._writer is not None]
    for connection in connections:
        await connection.disconnect(nowait=True)
    for writer in writers:
        with suppress(OSError):
            await writer.wait_closed()


def _abandon(connections: Iterable[Any]) -> None:
    """Close the sockets of connections whose loop is closed, so that it can neither do it nor be told of it."""
    for connection in connections:
        writer, connection._writer, connection._reader = connection._writer, None, None
        transport = getattr(writer, "transport", None)
        while transport is not None:
            with suppress(RuntimeError):
                transport.abort()  # "Event loop is closed"; but it is marked as closing first
            sock = getattr(transport, "_sock", None)
            if sock is not None:
                transport._sock = None
                sock.close()
            transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)


def single(where: Mapping[str, Any], options: Mapping[str, Any], patience: float) -> AsyncSingleLink:
    """Return a link to the server at an address. Connects to nothing, as all of these."""
    client = driver.Redis(**where, **_translated(driver.Redis, options), socket_timeout=None)
    return AsyncSingleLink(client, *_limits(options, patience))


def behind_sentinels(
    hosts: Sequence[Any],
    primary: str,
    options: Mapping[str, Any],
    sentinel_options: Mapping[str, Any],
    patience: float,
) -> AsyncSingleLink:
    """Return a link to the primary of that name."""
    timeout = sentinel_options.get("socket_timeout")
    sentinel = Sentinel(
        hosts, sentinel_kwargs=_translated(driver.Redis, sentinel_options) | {"socket_timeout": timeout}
    )
    client = sentinel.master_for(primary, **_translated(driver.Redis, options), socket_timeout=None)
    return AsyncSingleLink(client, *_limits(options, patience), sentinel)


def cluster(hosts: Sequence[Any], options: Mapping[str, Any]) -> AsyncClusterLink:
    """Return a link to the cluster of these start-up nodes."""
    # On every so manieth MOVED the driver would close all connections, with what is on its way; it follows it anyway.
    translated = _translated(RedisCluster, {"dynamic_startup_nodes": False, "reinitialize_steps": 0, **options})
    nodes = [ClusterNode(*where) for where in hosts]
    return AsyncClusterLink(RedisCluster(startup_nodes=nodes, socket_timeout=options["socket_timeout"], **translated))


def _limits(options: Mapping[str, Any], patience: float) -> tuple[float | None, float | None]:
    timeout, connect_timeout = options.get("socket_timeout"), options.get("socket_connect_timeout")
    if timeout is None or connect_timeout is None:
        return timeout, None
    return timeout, max(patience, timeout + connect_timeout)


def _translated(client: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a synchronous client, without its time-out, as those of an asynchronous one."""
    known = set(inspect.signature(client).parameters)
    unknown = set(options) - known - NEEDLESS
    if unknown:
        raise TypeError(
            f"redis.asyncio does not take {', '.join(sorted(unknown))}, so async code cannot use this store"
        )
    translated = {name: value for name, value in options.items() if name in known and name != "socket_timeout"}
    retry = options.get("retry")
    if retry is not None:
        translated["retry"] = Retry(retry._backoff, retry.get_retries())
    return translated
