"""PgBouncer in transaction mode, from the PATH (Debian's package of that name)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.ram import short_root
from tests.servers import ServerMissing
from tests.servers.databases import Server, _asks_postgres, free_port, user_group

CONFIG = """
[databases]
postgres = host={host} port={port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
query_wait_timeout = 120
ignore_startup_parameters = extra_float_digits
"""


@contextmanager
def pgbouncer(postgres: Server, size: int = 4) -> Iterator[Server]:
    """Run a PgBouncer before the server, with so many connections to it; raise ServerMissing where there is none."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        raise ServerMissing("pgbouncer is not on the PATH: apt-get install pgbouncer")
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to be root
    folder = Path(tempfile.mkdtemp(prefix="locks-bouncer-", dir=short_root()))
    try:
        listen = free_port()
        config = folder / "pgbouncer.ini"
        config.write_text(
            CONFIG.format(host=postgres.settings["HOST"], port=postgres.settings["PORT"], listen=listen, size=size)
        )
        if user:
            shutil.chown(folder, user, user_group(user))
            shutil.chown(config, user)
        settings = {**postgres.settings, "PORT": str(listen), "DISABLE_SERVER_SIDE_CURSORS": True}
        server = Server([program, str(config)], settings, _asks_postgres(listen), folder / "log", user)
        server.start()
        try:
            yield server
        finally:
            with suppress(AssertionError):
                server.resume()
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
