"""What is guarded: a counter for each name, and a journal of its increments.

An increment reads the counter, and writes what it read and one more: of two that read the same, one is lost. The
journal, written in the same transaction, tells which increments were committed, whoever was killed before he knew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.db import connections

from .history import Recorder

TABLES = {
    "chaos_counter": "(name varchar(50) PRIMARY KEY, value integer NOT NULL)",
    "chaos_journal": "(op varchar(50) PRIMARY KEY, name varchar(50), value integer NOT NULL, fence bigint NOT NULL)",
}


def create(alias: str, names: Sequence[str]) -> None:
    with connections[alias].cursor() as cursor:
        for table, columns in TABLES.items():
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
            cursor.execute(f"CREATE TABLE {table} {columns}")
        cursor.executemany("INSERT INTO chaos_counter VALUES (%s, 0)", [(name,) for name in names])


def increment(alias: str, op: str, name: str, fence: int, pause: Callable[[], None]) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT value FROM chaos_counter WHERE name = %s", [name])
        value = cursor.fetchone()[0] + 1
        pause()
        cursor.execute("UPDATE chaos_counter SET value = %s WHERE name = %s", [value, name])
        cursor.execute("INSERT INTO chaos_journal VALUES (%s, %s, %s, %s)", [op, name, value, fence])


def report(alias: str, recorder: Recorder) -> None:
    """Write down what is in the tables."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT op, name, value, fence FROM chaos_journal")
        for op, name, value, fence in cursor.fetchall():
            recorder.write("row", op=op, name=name, value=value, fence=fence)
        cursor.execute("SELECT name, value FROM chaos_counter")
        for name, value in cursor.fetchall():
            recorder.write("counter", name=name, value=value)
