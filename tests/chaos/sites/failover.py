"""Servers with replicas that take over: behind a sentinel, and in a cluster.

They take over when told to, whether the primary is there or not: never on their own, since a machine that is busy for
a moment would look like a dead primary, and the checker would not know.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import redis as driver

from tests.chaos.nemesis import Fault
from tests.conftest import REDIS
from tests.crew import Spec
from tests.servers import ServerMissing
from tests.servers import redis as servers
from tests.servers.redis import Server, wait_until

from . import ALIAS, Site
from .redis import flush

MASTER = "mymaster"
NEVER = "600000"  # milliseconds until a server that does not answer is taken for dead
REPLICATION = ("--repl-diskless-sync-delay", "0")
LONGEST = 60  # seconds that anything takes here
TRIES = 10


class Pair:
    """A primary and its replica, which change places."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary, self.replica = primary, replica

    @property
    def faults(self) -> list[Fault]:
        return [Fault("fail over", self._killed), Fault("fail over from a stopped primary", self._stopped)]

    @contextmanager
    def _killed(self, chance: random.Random) -> Iterator[None]:
        self.primary.stop()
        self.change_places("FORCE")
        yield
        self.replica.start()
        self.reunite()

    @contextmanager
    def _stopped(self, chance: random.Random) -> Iterator[None]:
        self.primary.pause()
        self.change_places("FORCE")
        yield
        self.replica.resume()
        self.reunite()

    def change_places(self, *how: str) -> None:
        for _ in range(TRIES):
            self._take_over(*how)
            with suppress(ServerMissing):  # it has given up: to be told again sooner would make it begin again
                wait_until(self._has_changed, "The heir of the primary", LONGEST / TRIES)
                break
        assert self._has_changed()
        self.primary, self.replica = self.replica, self.primary

    def reunite(self) -> None:
        with driver.Redis(port=self.replica.port) as client:
            wait_until(lambda: self._follows(client), "The replica", LONGEST)

    def _take_over(self, *how: str) -> None:
        """Tell the replica to take over."""
        raise NotImplementedError

    def _has_changed(self) -> bool:
        """Return whether it has."""
        raise NotImplementedError

    def _follows(self, client: driver.Redis) -> bool:
        """Return whether the replica has all that the primary has."""
        role, _, port, state, *_ = [*client.role(), "", ""]
        return role == b"slave" and port == self.primary.port and state == b"connected"


@contextmanager
def sentinel(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """A primary and a replica, and a sentinel."""
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(servers.running(servers.valkey_binary(), *REPLICATION)) for _ in "ab")
        _follow(replica, primary)
        watcher = stack.enter_context(servers.sentinel(primary, MASTER))
        pair = stack.enter_context(_watched(watcher, primary, replica))
        locks = {"BACKEND": REDIS, "LOCATION": watcher.url, "OPTIONS": {"sentinel": MASTER}}
        spec = Spec(locks, {ALIAS: data})
        yield Site(spec, spec, [*pair.faults, Fault.between("flush", lambda: flush([pair.primary.url]))])


@contextmanager
def confirmed(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """The same, with grants that count only when the replica has them."""
    with sentinel(data, ttl) as site:
        options = {**site.near.locks["OPTIONS"], "wait_replicas": 1, "wait_timeout": ttl / 3}
        spec = site.near._replace(locks={**site.near.locks, "OPTIONS": options})
        yield site._replace(near=spec, far=spec)


def _follow(replica: Server, primary: Server) -> None:
    with driver.Redis(port=replica.port) as client:
        client.replicaof("127.0.0.1", primary.port)


@contextmanager
def _watched(watcher: Server, primary: Server, replica: Server) -> Iterator[Pair]:
    with driver.Redis(port=watcher.port) as client:
        for option, value in (("down-after-milliseconds", NEVER), ("failover-timeout", "1000")):
            client.execute_command("SENTINEL", "SET", MASTER, option, value)
        pair = WatchedPair(primary, replica, client)
        pair.reunite()
        yield pair


class WatchedPair(Pair):
    SPLIT = 1.0  #: seconds for which a primary that comes back goes on as one; the sentinel would let it for ten

    def __init__(self, primary: Server, replica: Server, watcher: driver.Redis) -> None:
        super().__init__(primary, replica)
        self._watcher = watcher

    def reunite(self) -> None:
        time.sleep(self.SPLIT)
        _follow(self.replica, self.primary)
        super().reunite()

    def _take_over(self, *how: str) -> None:
        _told(self._watcher, "SENTINEL", "FAILOVER", MASTER)

    def _has_changed(self) -> bool:
        return int(self._watcher.sentinel_master(MASTER)["port"]) == self.replica.port


@contextmanager
def cluster(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """Three primaries with a replica each."""
    options = ("--cluster-node-timeout", NEVER, *REPLICATION)
    with servers.cluster_servers(3, *options) as primaries, ExitStack() as stack:
        shards = [Shard(primary, stack.enter_context(_node(*options))) for primary in primaries]
        for shard in shards:
            shard.found()
        locks = {"BACKEND": REDIS, "LOCATION": [one.url for one in primaries], "OPTIONS": {"cluster": True}}
        spec = Spec(locks, {ALIAS: data})
        flushed = Fault.between("flush", lambda: flush([shard.primary.url for shard in shards]))
        yield Site(spec, spec, [*(fault for shard in shards for fault in shard.faults), flushed])


@contextmanager
def _node(*options: str) -> Iterator[Server]:
    port = servers.free_cluster_port()
    with servers.running(servers.valkey_binary(), "--cluster-enabled", "yes", *options, port=port) as server:
        yield server


class Shard(Pair):
    @property
    def faults(self) -> list[Fault]:
        return [*super().faults, Fault("hand over", self._handed_over)]

    def found(self) -> None:
        """Let the replica join the primary's cluster."""
        with driver.Redis(port=self.primary.port) as client:
            identity = client.execute_command("CLUSTER MYID").decode()
        with driver.Redis(port=self.replica.port) as client:
            client.execute_command("CLUSTER MEET", "127.0.0.1", self.primary.port)
            wait_until(lambda: _told(client, "CLUSTER REPLICATE", identity), "The replica's cluster")
        self.reunite()

    @contextmanager
    def _handed_over(self, chance: random.Random) -> Iterator[None]:
        """Let them change places in good order: the primary waits until the replica has everything."""
        self.change_places()
        yield
        self.reunite()

    def _take_over(self, *how: str) -> None:
        with driver.Redis(port=self.replica.port) as client:
            _told(client, "CLUSTER FAILOVER", *how)

    def _has_changed(self) -> bool:
        with driver.Redis(port=self.replica.port) as client:
            return bool(client.role()[0] == b"master")


def _told(client: driver.Redis, *command: str) -> bool:
    """Tell it, and return whether it can: it may be at it already, or not know yet whom it is told of."""
    try:
        client.execute_command(*command)
    except driver.ResponseError:
        return False
    return True
