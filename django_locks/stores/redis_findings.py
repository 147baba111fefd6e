"""What the state and the settings of a Redis or Valkey server mean for leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django_locks.findings import FAIL, OK, WARN, Finding

Info = Mapping[str, Any]


def findings(servers: Mapping[str, Info]) -> Iterator[Finding]:
    """Yield what INFO (and CONFIG, where it may be asked) of each server says."""
    for address, info in servers.items():
        where = f"{address}: " if address else ""
        for look in (_version, _role, _eviction, _persistence, _replicas):
            finding = look(info)
            yield finding._replace(text=where + finding.text)


def _version(info: Info) -> Finding:
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "unknown")
    return Finding(OK, "version", f"{product} {version}", value=version)


def _role(info: Info) -> Finding:
    role = str(info.get("role", "unknown"))
    if role == "slave":
        return Finding(FAIL, "role", "it is a replica, and cannot be written to", "Name the primary in LOCATION.", role)
    return Finding(OK, "role", "it is a primary", value=role)


def _eviction(info: Info) -> Finding:
    policy, limit = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory", 0))
    what = f"eviction policy {policy}, maxmemory {info.get('maxmemory_human', limit) if limit else 'not limited'}"
    if policy == "noeviction":
        return Finding(OK, "eviction", what, value=policy)
    hint = "Set maxmemory-policy noeviction, or give the locks a server of their own."
    if limit:
        return Finding(FAIL, "eviction", f"{what}: a held lease may be thrown away when memory is full", hint, policy)
    return Finding(WARN, "eviction", f"{what}: harmless until maxmemory is set", hint, policy)


def _persistence(info: Info) -> Finding:
    if int(info.get("aof_enabled", 0)):
        fsync = str(info.get("appendfsync", "unknown"))
        if fsync == "no":
            text = "append-only file, flushed when the system likes: a crash may forget the last leases"
            return Finding(WARN, "persistence", text, "Set appendfsync everysec, or always.", "aof no")
        return Finding(OK, "persistence", f"append-only file, fsync {fsync}", value=f"aof {fsync}")
    hint = "Set appendonly yes. Holders are told at their next renewal, but others may have taken the lock before."
    if info.get("save"):
        text = f"snapshots alone (save {info['save']}): a restart forgets the leases since the last one"
        return Finding(WARN, "persistence", text, hint, "rdb")
    return Finding(WARN, "persistence", "none known: a restart forgets all leases", hint, "none")


def _replicas(info: Info) -> Finding:
    count = int(info.get("connected_slaves", 0))
    if not count:
        return Finding(OK, "replicas", "no replica", value=0)
    text = (
        f"{count} replica{'s' if count > 1 else ''}: a fail-over may forget the last leases, as they are copied later"
    )
    return Finding(OK, "replicas", text, value=count)
