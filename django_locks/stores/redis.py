"""Leases on Redis or Valkey: one server, a primary found by sentinels, or a cluster.

Every verb is one Lua script, so one atomic step and one round trip; the time is the server's. Where the data of the
primary is lost (a restart without persistence, a fail-over before the replica had it), leases are lost with it: the
holder is told at its next renewal, and the next fence is higher than all before, as it follows the server's clock.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from django.views.decorators.debug import sensitive_variables

from django_locks.exceptions import StoreUnavailable
from django_locks.findings import Finding
from django_locks.values import LeaseInfo

from .base import RELEASED, Browsed, Claim
from .redis_push import ClusterPush, RedisPush
from .redis_requests import RedisRequests, make_connector
from .redis_wire import CLUSTER_BUCKETS, READ_BATCH, Bucket, Wire, leases_read, renewed

FEW = 1000  # leases that are listed by name, as that takes a look at all of them
UNCONFIRMED = -1  # in place of a fence


class RedisStore(RedisRequests):
    """Keeps leases on Redis or Valkey.

    LOCATION is a URL (``redis://``, ``rediss://`` for TLS, ``unix://``) or a list of URLs. Of a plain list the first is
    the primary and the others, its replicas, are never asked: they lag behind. With ``cluster=True`` all of them are
    start-up nodes. With ``sentinel="mymaster"`` they are the sentinels, of which each is asked for the primary of that
    name; credentials, database, TLS and parameters of the first URL are for the primary, and ``sentinel_kwargs`` for
    the sentinels themselves.

    ``wait_replicas=N``: a grant counts only when N replicas have it, within ``wait_timeout`` seconds (default 1); else
    it is given back, and `StoreUnavailable` raised. That makes it unlikely, not impossible, that a fail-over forgets a
    lease: WAIT does not make Redis strongly consistent (https://redis.io/docs/latest/commands/wait/). Not on a cluster.

    All other OPTIONS are those of ``redis.Redis``. Both time-outs are 2 seconds unless set (less with several start-up
    nodes or sentinels, so that asking all of them stays below 6 seconds), redis-py's own retries are off, and the
    number of connections is not limited.
    """

    def __init__(
        self,
        alias: str,
        location: Any = None,
        key_prefix: str = "",
        *,
        cluster: bool = False,
        sentinel: str | None = None,
        sentinel_kwargs: Mapping[str, Any] | None = None,
        wait_replicas: int = 0,
        wait_timeout: float = 1.0,
        **client_options: Any,
    ) -> None:
        connector = make_connector(
            alias, location, cluster=cluster, sentinel=sentinel, sentinel_kwargs=sentinel_kwargs, options=client_options
        )
        super().__init__(alias, location, key_prefix, connector)
        if cluster and "{" in key_prefix:
            raise connector.wrong("KEY_PREFIX must not contain '{' on a cluster, where braces choose the node.")
        self._confirm = connector.confirmation(wait_replicas, wait_timeout)
        self._wire = Wire(key_prefix, CLUSTER_BUCKETS if cluster else 1)
        self.waiters.push = self._push = self._cluster_push() if cluster else self._server_push()

    def _server_push(self) -> RedisPush:
        return RedisPush(
            self.waiters, lambda: self._connector.subscriber(self._link or self._open()), self._wire.channel
        )

    def _cluster_push(self) -> ClusterPush:
        def node_of(channel: bytes) -> Any:
            return self._link and self._connector.node_of(self._link, channel)

        return ClusterPush(
            self.waiters,
            node_of,
            lambda: self._connector.learn_nodes(self._link or self._open()),
            lambda node: self._connector.subscriber(self._link or self._open(), node),
            self._wire.channel,
        )

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        call = self._wire.acquire(name, owner, ttl, holder)
        if self._confirm is not None:
            call = call._replace(confirm=self._confirm)
        reply = self._run("acquire", name, call)
        fence = self._confirmed(name, reply)
        if fence == UNCONFIRMED:
            self.release(name, owner)
            raise self._unconfirmed(name, reply)
        return fence

    @sensitive_variables()
    def release(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        """Free the name and return True, or False if it is not the owner's (any more), which changes nothing.

        Also True if the connection broke after a first request that may have done it, and the second one found the
        name not to be the owner's. ``outcome`` is not kept: nothing of an ended lease is.
        """
        call = self._wire.release(name, owner, hold_for)
        started = time.monotonic()
        try:
            return self._released(name, (self._link or self._open()).run(call))
        except Exception as error:
            self._run_again("release", name, lambda link: link.run(call), error, started)
            return True

    def _released(self, name: str, reply: int) -> bool:
        if reply > 1 and reply > 1 + self._push.is_watching(name):
            self.waiters.rivals.note_release(name)
        return reply > 0

    def _confirmed(self, name: str, reply: Any) -> int | None:
        if self._confirm is None or reply is None:
            return reply if reply is None else int(reply)
        fence, replicas = reply
        return int(fence) if replicas >= self._confirm[0] else UNCONFIRMED

    def _unconfirmed(self, name: str, reply: Any) -> StoreUnavailable:
        wanted, patience = self._confirm or (0, 0)
        why = f"only {reply[1]} of {wanted} replicas had it after {patience / 1000} s, so it was given back"
        return self.unavailable("acquire", name, why)

    def renew(self, leases: Sequence[Claim]) -> set[str]:
        batches = list(self._wire.renew(leases))
        if not batches:
            return set()
        name = leases[0][0] if len(leases) == 1 else ""
        replies = self._run_all("renew", name, [call for _, call in batches])
        return renewed(batches, replies)

    def get(self, name: str) -> LeaseInfo | None:
        text = name.encode()
        reply = self._run("look up", name, self._wire.read(self._wire.bucket(text), [text]))
        return next(iter(self._told([text], reply)), None)

    def leases(self, prefix: str = "") -> Iterator[LeaseInfo]:
        """Yield all live leases whose name begins with ``prefix``, ordered by name."""
        buckets = [self._leases_of(bucket, prefix) for bucket in self._wire.buckets]
        return heapq.merge(*buckets, key=lambda lease: lease.name)

    def browse(self, start: int, size: int, soon: float) -> Browsed:
        """Return a page of live leases; of more than a thousand in order of their ends, which needs no look at all."""
        buckets = self._wire.buckets
        skipped = start if len(buckets) == 1 else 0  # of several, each may have all of the first ones
        calls = [self._wire.page(bucket, skipped, start - skipped + size, soon) for bucket in buckets]
        replies = self._run_all("list leases", "", calls)
        total, ending_soon = sum(reply[0] for reply in replies), sum(reply[1] for reply in replies)
        if total <= FEW:
            return Browsed(total, ending_soon, list(self.leases())[start : start + size])
        pages = [zip(page[1::2], page[::2], strict=True) for *_, page in replies]
        ends = sorted((float(end), name) for page in pages for end, name in page)
        names = [name for _, name in ends[start - skipped :][:size]]
        return Browsed(total, ending_soon, self._read(names))

    def _read(self, names: Sequence[bytes]) -> list[LeaseInfo]:
        found: dict[bytes, LeaseInfo] = {}
        for bucket in self._wire.buckets:
            here = [name for name in names if self._wire.bucket(name) is bucket]
            if here:
                reply = self._run("list leases", "", self._wire.read(bucket, here))
                found.update((lease.name.encode(), lease) for lease in self._told(here, reply))
        return [found[name] for name in names if name in found]

    def _told(self, names: Sequence[bytes], reply: Sequence[Any]) -> list[LeaseInfo]:
        try:
            return list(leases_read(names, reply))
        except ValueError as error:
            raise self.unavailable("read", "", str(error)) from error

    def prune(self, older_than: float) -> int:
        """Trim the indexes of expired names, which each grant does, too, and return 0: free names leave nothing."""
        self._run_all("prune", "", [self._wire.trim(bucket) for bucket in self._wire.buckets])
        return 0

    def count_free(self, older_than: float) -> int:
        return 0

    def diagnose(self) -> Iterator[Finding]:
        from .redis_findings import findings

        try:
            yield from findings((self._link or self._open()).info())
        except Exception as error:
            raise self.unavailable("examine", "", error) from error

    def _leases_of(self, bucket: Bucket, prefix: str) -> Iterator[LeaseInfo]:
        names = sorted(self._names_of(bucket, prefix))
        for start in range(0, len(names), READ_BATCH):
            batch = names[start : start + READ_BATCH]
            yield from self._told(batch, self._run("list leases", "", self._wire.read(bucket, batch)))

    def _names_of(self, bucket: Bucket, prefix: str) -> set[bytes]:
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, *names = self._run("list leases", "", self._wire.names(bucket, cursor, prefix))
            found.update(names)
            if cursor == b"0":
                return found

    def _forget_parent(self) -> None:
        super()._forget_parent()
        if hasattr(self, "_push"):  # another thread may have been making it
            self._push.forget()

    # The same for asyncio

    async def aacquire(self, name: str, owner: str, ttl: float, holder: str) -> int | None:
        call = self._wire.acquire(name, owner, ttl, holder)
        if self._confirm is not None:
            call = call._replace(confirm=self._confirm)
        reply = await self._arun("acquire", name, call)
        fence = self._confirmed(name, reply)
        if fence == UNCONFIRMED:
            await self.arelease(name, owner)
            raise self._unconfirmed(name, reply)
        return fence

    async def arelease(self, name: str, owner: str, hold_for: float = 0, outcome: str = RELEASED) -> bool:
        call = self._wire.release(name, owner, hold_for)
        link, started = self._async_links.get(), time.monotonic()
        try:
            return self._released(name, await link.run(call))
        except Exception as error:
            await self._arun_again("release", name, lambda link: link.run(call), error, started)
            return True

    async def arenew(self, leases: Sequence[Claim]) -> set[str]:
        batches = list(self._wire.renew(leases))
        if not batches:
            return set()
        name = leases[0][0] if len(leases) == 1 else ""
        replies = await self._arun_all("renew", name, [call for _, call in batches])
        return renewed(batches, replies)

    async def aget(self, name: str) -> LeaseInfo | None:
        text = name.encode()
        reply = await self._arun("look up", name, self._wire.read(self._wire.bucket(text), [text]))
        return next(iter(self._told([text], reply)), None)

    async def aleases(self, prefix: str = "") -> AsyncIterator[LeaseInfo]:
        found = [lease for bucket in self._wire.buckets for lease in await self._aleases_of(bucket, prefix)]
        for lease in sorted(found, key=lambda lease: lease.name):
            yield lease

    async def _aleases_of(self, bucket: Bucket, prefix: str) -> list[LeaseInfo]:
        names = sorted(await self._anames_of(bucket, prefix))
        found: list[LeaseInfo] = []
        for start in range(0, len(names), READ_BATCH):
            batch = names[start : start + READ_BATCH]
            found += self._told(batch, await self._arun("list leases", "", self._wire.read(bucket, batch)))
        return found

    async def _anames_of(self, bucket: Bucket, prefix: str) -> set[bytes]:
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, *names = await self._arun("list leases", "", self._wire.names(bucket, cursor, prefix))
            found.update(names)
            if cursor == b"0":
                return found
