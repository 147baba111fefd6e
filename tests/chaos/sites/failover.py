"""Servers with replicas that take over: behind a sentinel, and in a cluster."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import redis as driver

from tests.chaos.nemesis import Fault
from tests.conftest import REDIS
from tests.crew import Spec
from tests.servers import redis as servers
from tests.servers.redis import Server, wait_until

from . import ALIAS, Site
from .redis import flush

MASTER = "mymaster"
NOTICED = 500  # milliseconds until a server that does not answer is taken for dead
REPLICA = ("--repl-diskless-sync-delay", "0", "--replica-serve-stale-data", "no")
SPLIT = 1.0  # seconds for which a primary that comes back still takes itself for one


@contextmanager
def sentinel(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """A primary and a replica, which change places, and a sentinel."""
    with ExitStack() as stack:
        pair = [stack.enter_context(servers.running(servers.valkey_binary(), *REPLICA)) for _ in range(2)]
        _follow(pair[1], pair[0])
        watcher = stack.enter_context(servers.sentinel(pair[0], MASTER))
        with driver.Redis(port=watcher.port) as client:
            for option, value in (("down-after-milliseconds", NOTICED), ("failover-timeout", 1000)):
                client.execute_command("SENTINEL", "SET", MASTER, option, value)
            wait_until(lambda: client.sentinel_slaves(MASTER), "The sentinel's view of the replica")
        pairs = _Pair(pair, watcher)
        locks = {"BACKEND": REDIS, "LOCATION": watcher.url, "OPTIONS": {"sentinel": MASTER}}
        spec = Spec(locks, {ALIAS: data})
        yield Site(
            spec,
            spec,
            [
                Fault("fail over", pairs.kill),
                Fault("fail over from a stopped primary", pairs.stop),
                Fault.between("flush", lambda: flush([pairs.primary.url])),
            ],
        )


class _Pair:
    def __init__(self, servers: list[Server], watcher: Server) -> None:
        self.primary, self.replica = servers
        self._watcher = watcher

    @contextmanager
    def kill(self, chance: random.Random) -> Iterator[None]:
        self.primary.stop()
        self._wait_for_change()
        yield
        self.replica.start()
        _follow(self.replica, self.primary)

    @contextmanager
    def stop(self, chance: random.Random) -> Iterator[None]:
        self.primary.pause()
        self._wait_for_change()
        yield
        self.replica.resume()
        time.sleep(SPLIT)  # the sentinel would take some 10 seconds to tell it
        _follow(self.replica, self.primary)

    def _wait_for_change(self) -> None:
        with driver.Redis(port=self._watcher.port) as client:
            heir = self.replica.port
            wait_until(lambda: int(client.sentinel_master(MASTER)["port"]) == heir, "The heir of the primary", 60)
        self.primary, self.replica = self.replica, self.primary


def _follow(replica: Server, primary: Server) -> None:
    with driver.Redis(port=replica.port) as client:
        client.replicaof("127.0.0.1", primary.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "The replica")


@contextmanager
def cluster(data: dict[str, Any], ttl: float) -> Iterator[Site]:
    """Three primaries with a replica each."""
    options = ("--cluster-node-timeout", str(NOTICED), *REPLICA)
    with servers.cluster_servers(3, *options) as primaries, ExitStack() as stack:
        replicas = [stack.enter_context(_cluster_node(*options)) for _ in primaries]
        shards = [_Shard(primary, replica) for primary, replica in zip(primaries, replicas, strict=True)]
        for shard in shards:
            shard.join()
        locks = {"BACKEND": REDIS, "LOCATION": [one.url for one in primaries], "OPTIONS": {"cluster": True}}
        spec = Spec(locks, {ALIAS: data})

        def fault(kind: str, happens: Callable[[_Shard], Any]) -> Fault:
            return Fault(kind, lambda chance: happens(chance.choice(shards)))

        yield Site(
            spec,
            spec,
            [
                fault("fail over", _Shard.kill),
                fault("fail over from a stopped primary", _Shard.stop),
                fault("hand over", _Shard.hand_over),
                Fault.between("flush", lambda: flush([shard.primary.url for shard in shards])),
            ],
        )


@contextmanager
def _cluster_node(*options: str) -> Iterator[Server]:
    port = servers.free_cluster_port()
    with servers.running(servers.valkey_binary(), "--cluster-enabled", "yes", *options, port=port) as server:
        yield server


class _Shard:
    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary, self.replica = primary, replica

    def join(self) -> None:
        """Let the replica be the primary's."""
        with driver.Redis(port=self.primary.port) as client:
            identity = client.execute_command("CLUSTER MYID").decode()
        with driver.Redis(port=self.replica.port) as client:
            client.execute_command("CLUSTER MEET", "127.0.0.1", self.primary.port)
            wait_until(lambda: _done(client, "CLUSTER REPLICATE", identity), "The replica's cluster")
        self._wait_for_replica()

    @contextmanager
    def kill(self) -> Iterator[None]:
        self.primary.stop()
        self._wait_for_change()
        yield
        self.replica.start()
        self._wait_for_replica()

    @contextmanager
    def stop(self) -> Iterator[None]:
        self.primary.pause()
        self._wait_for_change()
        yield
        self.replica.resume()
        self._wait_for_replica()

    @contextmanager
    def hand_over(self) -> Iterator[None]:
        """Let them change places in good order: the primary waits until the replica has everything."""
        with driver.Redis(port=self.replica.port) as client:
            client.execute_command("CLUSTER FAILOVER")
        self._wait_for_change()
        yield
        self._wait_for_replica()

    def _wait_for_change(self) -> None:
        with driver.Redis(port=self.replica.port) as client:
            wait_until(lambda: client.role()[0] == b"master", "The heir of the primary", 60)
        self.primary, self.replica = self.replica, self.primary

    def _wait_for_replica(self) -> None:
        with driver.Redis(port=self.replica.port) as client:
            wait_until(lambda: client.role()[0] == b"slave" and client.role()[3] == b"connected", "The replica", 60)


def _done(client: Any, *command: str) -> bool:
    with suppress(driver.ResponseError):  # it does not know that node yet
        client.execute_command(*command)
        return True
    return False
