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
from redis.exceptions import NoScriptError, ResponseError
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
    ``asyncio.wait_for``, which on Python 3.11 makes a task for it, and may swallow a cancellation.
    """

    def __init__(
        self, client: driver.Redis, timeout: float | None, patience: float | None, sentinel: Sentinel | None = None
    ) -> None:
        self._client = client  # holds the pool, which it closes when it is dropped
        self._pool: Any = client.connection_pool
        self._timeout = timeout
        self._patience = patience  # until a connection is there, which may take sentinels and a handshake
        self._sentinel = sentinel
        self._closing = False

    async def run(self, call: Call) -> Any:
        try:
            async with asyncio.timeout(self._patience) as limit:
                connection = await self._pool.get_connection()
                try:
                    if self._timeout is not None:
                        limit.reschedule(asyncio.get_running_loop().time() + self._timeout)
                    return await _reply(connection, call)
                finally:
                    await self._pool.release(connection)
        except TimeoutError:
            raise NoAnswer("The server did not answer in time.") from None
        finally:
            if self._closing:
                await self._disconnect()

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        return [await self.run(call) for call in calls]

    async def aclose(self) -> None:
        self._closing = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        for pool in self._pools():
            await pool.disconnect(inuse_connections=False)

    def abandon(self) -> None:
        for pool in self._pools():
            _abandon([*pool._available_connections, *pool._in_use_connections])

    def _pools(self) -> list[Any]:
        sentinels = self._sentinel.sentinels if self._sentinel else ()
        return [self._pool, *[client.connection_pool for client in sentinels]]


async def _reply(connection: Any, call: Call) -> Any:
    script, arguments = call
    try:
        try:
            await connection.send_command("EVALSHA", script.sha, *arguments)
            return await connection.read_response(disable_decoding=True)
        except NoScriptError:
            await connection.send_command("EVAL", script.source, *arguments)
            return await connection.read_response(disable_decoding=True)
    except ResponseError:
        raise
    except BaseException:
        # A cancelled command's reply is still to come, and would be taken for that of the next.
        await connection.disconnect(nowait=True)
        raise


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
                await self.client.aclose()

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts, at all nodes at once. A failing node does not keep the other nodes from theirs."""
        await see_through(self.client.initialize())
        replies: list[Any] = [None] * len(calls)
        nodes: dict[Any, list[int]] = {}
        for place, call in enumerate(calls):
            nodes.setdefault(self.client.get_node_from_key(call.arguments[1]), []).append(place)

        async def run_in_turn(places: list[int]) -> None:
            for place in places:
                replies[place] = await self.run(calls[place])

        errors = await asyncio.gather(*map(run_in_turn, nodes.values()), return_exceptions=True)
        for error in errors:
            if error is not None:
                raise error
        return replies

    async def _run(self, call: Call) -> Any:
        script, arguments = call
        try:
            return await self.client.execute_command("EVALSHA", script.sha, *arguments, NEVER_DECODE=True)
        except NoScriptError:
            return await self.client.execute_command("EVAL", script.source, *arguments, NEVER_DECODE=True)

    async def aclose(self) -> None:
        self._closing = True
        await self.client.aclose()

    def abandon(self) -> None:
        manager = self.client.nodes_manager
        for node in [*manager.nodes_cache.values(), *manager.startup_nodes.values()]:
            _abandon(node._connections)
        self.client._initialize = True  # as after aclose()


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
    translated = _translated(RedisCluster, {"dynamic_startup_nodes": False, **options})
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
