"""Links to Redis that run scripts: to one server, or to a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import redis
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as BrokenLink
from redis.exceptions import NoScriptError, ResponseError
from redis.sentinel import Sentinel

from .redis_wire import Call

TIMEOUT = 2.0
PATIENCE = 5.0  # seconds in which all of several start-up nodes or sentinels have been asked, if none answers


class Link(Protocol):
    """A client that runs scripts."""

    client: Any  #: the driver's own

    def run(self, call: Call) -> Any:
        """Run one script and return its reply, whose texts are bytes."""

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts and return their replies in order."""

    def info(self) -> dict[str, dict[str, Any]]:
        """Return what each server that is asked says of itself, by its address."""

    def close(self) -> None:
        """Close all connections."""


class SingleLink:
    """The link to one server. Takes connections from redis-py's pool itself, to drop one that an interrupt broke off:
    its late reply would be taken for that of the next command."""

    def __init__(self, client: redis.Redis, sentinel: Sentinel | None = None) -> None:
        self.client = client
        self._pool: Any = client.connection_pool
        self._sentinel = sentinel
        # Idle connections, last in, first out. The way through the driver's pool takes a fifth of the whole request.
        self._kept: list[Any] | None = [] if _may_keep(self._pool) else None

    def run(self, call: Call) -> Any:
        connection = self._take()
        try:
            reply = _reply(connection, call)
        except ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            connection.disconnect()
            self._pool.release(connection)
            raise
        self._give_back(connection)
        return reply

    def _take(self) -> Any:
        while self._kept:
            try:
                connection = self._kept.pop()
            except IndexError:  # another thread was faster
                break
            if _is_quiet(connection):
                return connection
            connection.disconnect()  # the pool of redis-py 8.1 would hand it out with an answer that nobody has read
            self._pool.release(connection)
        return self._pool.get_connection()

    def _give_back(self, connection: Any) -> None:
        if self._kept is None or getattr(connection, "should_reconnect", bool)():
            self._pool.release(connection)
        else:
            self._kept.append(connection)

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        return [self.run(call) for call in calls]

    def info(self) -> dict[str, dict[str, Any]]:
        return {"": _described(self.client)}

    def close(self) -> None:
        while self._kept:
            with suppress(IndexError):  # another thread was faster
                self._pool.release(self._kept.pop())
        self._pool.disconnect()
        for client in self._sentinel.sentinels if self._sentinel else ():
            client.close()


def _may_keep(pool: Any) -> bool:
    """Does the pool nothing for its connections that would be missed: no sentinel, no login that changes, no cache?"""
    options = pool.connection_kwargs
    return type(pool) is redis.ConnectionPool and not (
        options.get("credential_provider") or options.get("cache_config")
    )


def _is_quiet(connection: Any) -> bool:
    """Is there nothing to read, as there is when the other side has closed it, or has something to tell the driver?"""
    try:
        return not connection.can_read()
    except (redis.RedisError, OSError):
        return False


def _reply(connection: Any, call: Call) -> Any:
    script, arguments, confirm = call
    try:
        connection.send_command("EVALSHA", script.sha, *arguments)
        reply = connection.read_response(disable_decoding=True)
    except NoScriptError:
        connection.send_command("EVAL", script.source, *arguments)
        reply = connection.read_response(disable_decoding=True)
    if confirm is None or reply is None:
        return reply
    connection.send_command("WAIT", *confirm)  # counts the writes of this very connection
    return reply, connection.read_response()


class ClusterLink:
    """The link to a cluster: a call goes where its first key lives."""

    def __init__(self, client: RedisCluster) -> None:
        self.client: Any = client

    def run(self, call: Call) -> Any:
        script, arguments, _ = call
        try:
            return self.client.execute_command("EVALSHA", script.sha, *arguments, NEVER_DECODE=True)
        except NoScriptError:
            return self.client.execute_command("EVAL", script.source, *arguments, NEVER_DECODE=True)

    def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip a node. A failing node does not keep the other nodes from theirs."""
        begin = time.monotonic()
        replies: list[Any] = [BrokenLink("No time was left to ask this node.")] * len(calls)
        for node, places in self._by_node(calls).items():
            if time.monotonic() - begin < PATIENCE - TIMEOUT:
                for place, reply in zip(places, _pipelined(node, [calls[place] for place in places]), strict=True):
                    replies[place] = reply
        failed = [place for place, reply in enumerate(replies) if isinstance(reply, Exception)]
        # A node that answered (it lacks the script, or the slot has moved) must not wait for one that did not.
        for place in sorted(failed, key=lambda place: not isinstance(replies[place], ResponseError)):
            if time.monotonic() - begin > PATIENCE / 2:
                raise replies[place]
            replies[place] = self.run(calls[place])  # loads scripts, follows slots, finds a dead node's successor
        return replies

    def _by_node(self, calls: Sequence[Call]) -> dict[Any, list[int]]:
        places: dict[Any, list[int]] = {}
        for place, call in enumerate(calls):
            node = self.client.get_node_from_key(call.arguments[1])
            places.setdefault(self.client.get_redis_connection(node), []).append(place)
        return places

    def info(self) -> dict[str, dict[str, Any]]:
        return {node.name: _described(self.client.get_redis_connection(node)) for node in self.client.get_primaries()}

    def close(self) -> None:
        self.client.close()


def _described(client: Any) -> dict[str, Any]:
    """Return what INFO says, and of CONFIG the little that INFO leaves out, where it may be asked."""
    described = dict(client.info())
    for parameter in ("save", "appendfsync"):
        with suppress(redis.RedisError):  # a managed server
            described |= client.config_get(parameter)
    return described


def _pipelined(node: redis.Redis, calls: Sequence[Call]) -> list[Any]:
    """Return a reply or an error for each. A ClusterPipeline would ask for the keys of each call (COMMAND GETKEYS)."""
    try:
        with node.pipeline(transaction=False) as pipeline:
            for script, arguments, _ in calls:
                pipeline.execute_command("EVALSHA", script.sha, *arguments, NEVER_DECODE=True)
            return pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        return [error] * len(calls)
