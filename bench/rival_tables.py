"""The two bare statements, as somebody would write them by hand who wants a TTL and a fence, and nothing else."""

from __future__ import annotations

from typing import Any

TABLE = {
    "postgresql": """CREATE TABLE IF NOT EXISTS bench_bare (
        name varchar(255) PRIMARY KEY, owner varchar(32) NOT NULL, fence bigint NOT NULL,
        expires_at timestamptz NOT NULL)""",
    "mysql": """CREATE TABLE IF NOT EXISTS bench_bare (
        name varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, owner varchar(32) NOT NULL,
        fence bigint NOT NULL, expires_at datetime(6) NOT NULL)""",
    "sqlite": """CREATE TABLE IF NOT EXISTS bench_bare (
        name text PRIMARY KEY, owner text NOT NULL, fence integer NOT NULL, expires_at real NOT NULL)""",
}

TAKE = {
    "postgresql": """
        INSERT INTO bench_bare AS b (name, owner, fence, expires_at)
        VALUES (%s, %s, 1, clock_timestamp() + interval '30 s')
        ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = b.fence + 1,
          expires_at = clock_timestamp() + interval '30 s'
        WHERE b.expires_at <= clock_timestamp() RETURNING fence""",
    "mysql": """
        INSERT INTO bench_bare (name, owner, fence, expires_at)
        VALUES (%s, %s, LAST_INSERT_ID(1), UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)
        ON DUPLICATE KEY UPDATE
          fence = IF(expires_at <= UTC_TIMESTAMP(6), LAST_INSERT_ID(fence + 1), fence + LAST_INSERT_ID(0)),
          owner = IF(expires_at <= UTC_TIMESTAMP(6), VALUES(owner), owner),
          expires_at = IF(expires_at <= UTC_TIMESTAMP(6), VALUES(expires_at), expires_at)""",
    "sqlite": """
        INSERT INTO bench_bare (name, owner, fence, expires_at) VALUES (%s, %s, 1, julianday('now') + 30 / 86400.0)
        ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = fence + 1, expires_at = excluded.expires_at
        WHERE expires_at < julianday('now') RETURNING fence""",
}

FREE = {
    "postgresql": """
        UPDATE bench_bare SET owner = '', expires_at = to_timestamp(0)
        WHERE name = %s AND owner = %s AND expires_at > clock_timestamp()""",
    "mysql": """
        UPDATE bench_bare SET owner = '', expires_at = '1970-01-01'
        WHERE name = %s AND owner = %s AND expires_at > UTC_TIMESTAMP(6)""",
    "sqlite": "UPDATE bench_bare SET owner = '', expires_at = 0 WHERE name = %s AND owner = %s",
}


class Bare:
    """A lock of two statements, over Django's cursor or the driver's own."""

    def __init__(self, vendor: str, cursor: Any, name: str = "bare") -> None:
        self._cursor = cursor
        self._take, self._free = TAKE[vendor], FREE[vendor]
        self._by_id = vendor == "mysql"
        self._name = name
        with cursor() as open_cursor:
            open_cursor.execute(TABLE[vendor])

    def take(self, owner: str) -> bool:
        with self._cursor() as cursor:
            cursor.execute(self._take, (self._name, owner))
            return bool(cursor.lastrowid) if self._by_id else bool(cursor.fetchall())

    def free(self, owner: str) -> bool:
        with self._cursor() as cursor:
            cursor.execute(self._free, (self._name, owner))
            return bool(cursor.rowcount)

    def pair(self) -> None:
        owner = "0123456789abcdef0123456789abcdef"
        assert self.take(owner)
        assert self.free(owner)
