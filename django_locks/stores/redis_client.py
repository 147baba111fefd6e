"""From LOCATION and OPTIONS of the Redis store to a client that runs scripts.

Only this module and its links import the driver, and only the store's constructor imports this module. Everything is
checked without connecting to anything.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.exceptions import ConnectionError as BrokenLink
from redis.exceptions import SlotNotCoveredError
from redis.retry import Retry
from redis.sentinel import Sentinel

from django_locks.exceptions import InvalidLockStore

from . import redis_async
from .redis_links import PATIENCE, TIMEOUT, ClusterLink, Link, SingleLink

NO_LIMIT = 2**31  # connections; redis-py 8 stops at 100, and a 101st thread would be told "Too many connections"
LOOPBACK = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}
SCHEMES = ("redis://", "rediss://", "unix://")

#: Arguments of redis.Redis that LOCATION stands for, or that would give all threads one connection.
RESERVED = {"self", "host", "port", "unix_socket_path", "connection_pool", "single_connection_client"}
CLUSTER_RESERVED = RESERVED | {"db", "url", "startup_nodes", "kwargs", "read_from_replicas", "load_balancing_strategy"}

Address = tuple[str, int, int] | tuple[str, int]


class Connector:
    """Checked settings, which open links."""

    #: What the driver raises when a connection broke; a time-out is none of these.
    broken = BrokenLink

    def __init__(
        self,
        alias: str,
        location: object,
        *,
        cluster: bool,
        sentinel: str | None,
        sentinel_kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.alias, self.cluster, self.sentinel = alias, cluster, sentinel
        if cluster and sentinel:
            raise self.wrong("OPTIONS has both 'cluster' and 'sentinel': choose one.")
        if sentinel_kwargs and not sentinel:
            raise self.wrong("OPTIONS has 'sentinel_kwargs', which goes with 'sentinel'.")
        urls = self._urls(location)
        self._check_names("OPTIONS", options)
        self._check_names("'sentinel_kwargs'", sentinel_kwargs or {})
        self._addresses = [self._parse(url) for url in urls] if cluster or sentinel else [self._parse(urls[0])]
        self._options = self._defaults() | dict(options) | self._addresses[0][1]
        self._sentinel_options = self._for_sentinels(sentinel_kwargs or {})
        self._try_values()

    def wrong(self, message: str) -> InvalidLockStore:
        """Return the exception that says what is wrong with the settings."""
        return InvalidLockStore(f"LOCKS[{self.alias!r}]: {message}", alias=self.alias)

    def confirmation(self, replicas: object, seconds: object) -> tuple[int, int] | None:
        """Return what WAIT is given, or ``None`` if no replica need confirm a grant."""
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
            raise self.wrong(f"'wait_replicas' must be a number of replicas, not {replicas!r}.")
        if not replicas:
            return None
        if self.cluster:
            raise self.wrong("'wait_replicas' is for one server with replicas, not for a cluster.")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < self._reply_timeout():
            raise self.wrong(f"'wait_timeout' must be more than 0 s and less than the socket_timeout, not {seconds!r}.")
        return replicas, max(1, round(seconds * 1000))

    def _reply_timeout(self) -> float:
        timeout = self._options.get("socket_timeout")
        return float("inf") if timeout is None else float(timeout)

    def servers(self) -> list[Address]:
        """Return ``(host, port, db)`` or ``(path, db)`` of each server that LOCATION names and a lock asks."""
        db = int(self._options.get("db") or 0)
        return [
            (where, db) if isinstance(where, str) else (LOOPBACK.get(where[0], where[0]), where[1], db)
            for where, _ in self._addresses
        ]

    def open(self) -> Link:
        """Return a new link. Connects to nothing, except to a cluster."""
        if self.cluster:
            return ClusterLink(self._cluster())
        if self.sentinel:
            return self._behind_sentinels()
        return SingleLink(redis.Redis(**self._address(), **self._options))

    def open_async(self) -> redis_async.AsyncLink:
        """Return a new link of the running event loop. Connects to nothing."""
        hosts = [where for where, _ in self._addresses]
        try:
            if self.cluster:
                return redis_async.cluster(hosts, self._options)
            if self.sentinel:
                return redis_async.behind_sentinels(
                    hosts, self.sentinel, self._options, self._sentinel_options, PATIENCE
                )
            return redis_async.single(self._address(), self._options, PATIENCE)
        except TypeError as error:
            raise self.wrong(f"{error}.") from error

    def node_of(self, link: Link, key: bytes) -> Any:
        """Return the node of a cluster that serves the key, as far as is known, or None. No I/O."""
        try:
            return link.client.get_node_from_key(key)
        except SlotNotCoveredError:
            return None

    def learn_nodes(self, link: Link) -> None:
        """Ask the cluster anew which node serves what."""
        link.client.nodes_manager.initialize()

    def subscriber(self, link: Link, node: Any = None) -> Any:
        """Return a new connection for subscriptions, to the server of the link or that node of its cluster."""
        client = link.client if node is None else link.client.get_redis_connection(node)
        pool = client.connection_pool
        # In RESP 3 pushes come as a type of their own, and the driver wants to handle them itself.
        options = {key: value for key, value in pool.connection_kwargs.items() if "maint" not in key}
        return pool.connection_class(**{**options, "protocol": 2, "socket_timeout": None})

    def _address(self) -> dict[str, Any]:
        where = self._addresses[0][0]
        return {"unix_socket_path": where} if isinstance(where, str) else {"host": where[0], "port": where[1]}

    def _cluster(self) -> RedisCluster:
        nodes = [ClusterNode(*where) for where, _ in self._addresses]
        # The nodes of LOCATION stay the way in, so the time of a look-up is bounded by their number.
        return RedisCluster(startup_nodes=nodes, **{"dynamic_startup_nodes": False} | self._options)

    def _behind_sentinels(self) -> SingleLink:
        hosts = [where for where, _ in self._addresses]
        sentinel = Sentinel(hosts, sentinel_kwargs=self._sentinel_options)
        return SingleLink(sentinel.master_for(self.sentinel, **self._options), sentinel)

    def _urls(self, location: object) -> list[str]:
        urls = [location] if isinstance(location, str) else location
        if not isinstance(urls, list | tuple) or not urls or not all(isinstance(url, str) for url in urls):
            raise self.wrong("LOCATION must be a URL (redis://host:6379/0) or a list of URLs.")
        return list(urls)

    def _parse(self, url: str) -> tuple[Any, dict[str, Any]]:
        """Return the address of a URL, and what else the URL says. Its text stays out of every message."""
        if not url.startswith(SCHEMES):
            raise self.wrong(f"a URL in LOCATION must begin with one of {', '.join(SCHEMES)}.")
        try:
            said = parse_url(url)
        except ValueError:
            raise self.wrong(
                "LOCATION has a URL that cannot be read. Write special characters of a password as %XX."
            ) from None
        if said.pop("connection_class", None) and url.startswith("rediss://"):
            said["ssl"] = True
        if url.startswith("unix://"):
            return self._unix_path(said), said
        where = (said.pop("host", "localhost"), said.pop("port", 26379 if self.sentinel else 6379))
        if self.cluster and not said.get("db"):
            said.pop("db", None)
        self._check_names("the URL in LOCATION", said)
        return where, said

    def _unix_path(self, said: dict[str, Any]) -> str:
        if self.cluster or self.sentinel:
            raise self.wrong("a cluster or a sentinel cannot be reached by unix://.")
        path = said.pop("path", "")
        if not path:
            raise self.wrong("LOCATION has a unix:// URL without a path.")
        self._check_names("the URL in LOCATION", said)
        return str(path)

    def _check_names(self, where: str, options: Mapping[str, Any]) -> None:
        known = self._known()
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, [*known, "cluster", "sentinel", "sentinel_kwargs"], 2)
                hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Remove it."
                raise self.wrong(f"{where} has {name!r}, which {self._what()} does not take. {hint}")

    def _try_values(self) -> None:
        if self.cluster:
            return  # redis-py connects to a cluster as soon as it makes the client
        try:
            self.open()
        except (TypeError, ValueError, redis.RedisError) as error:
            raise self.wrong(f"redis-py refuses the OPTIONS: {error}") from error

    def _what(self) -> str:
        return "a Redis cluster" if self.cluster else "redis.Redis (beside an address, which is for LOCATION)"

    def _known(self) -> set[str]:
        known = _parameters(redis.Redis)
        if self.cluster:
            return (known & set(REDIS_ALLOWED_KEYS) | _parameters(RedisCluster)) - CLUSTER_RESERVED
        return known - RESERVED

    def _defaults(self) -> dict[str, Any]:
        return {**self._patience(), "max_connections": NO_LIMIT}

    def _patience(self) -> dict[str, Any]:
        """Short time-outs, and none of redis-py's own retries: ten, with pauses, in redis-py 8."""
        asked = len(self._addresses) if self.cluster or self.sentinel else 0
        timeout = min(TIMEOUT, PATIENCE / (asked + 1))
        return {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 0)}

    def _for_sentinels(self, given: Mapping[str, Any]) -> dict[str, Any]:
        tls = {"ssl": True} if self._options.get("ssl") else {}
        return {**self._patience(), **tls, **given}


def _parameters(client: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(client).parameters)
