"""The rooms of the package, and the way through them: imports point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import django_locks

PACKAGE = Path(django_locks.__file__).parent

SUBCOMMANDS = [
    "doctor",
    "extend",
    "history",
    "list",
    "pause",
    "prune",
    "release",
    "resume",
    "run",
    "show",
    "wait",
    "watch",
]

# Each room may import, wherever in its file, from the rows above its own, and nothing else of the package.
ROWS = [
    ["exceptions", "values", "chance", "clock", "signals", "logs", "text", "instants", "transactions", "findings"],
    ["models", "stores.rivals", "tasks", "naming", "commands", "orders", "signatures"],
    ["stores.waiting"],
    ["stores.base"],
    [
        "grants",
        "renewal",
        "fencing",
        "stores.per_loop",
        "stores.redis_push",
        "stores.redis_wire",
        "stores.redis_findings",
        "stores.preparation",
        "stores.sql.base",
        "stores.sql.faults",
    ],
    ["stores.redis_async", "stores.redis_links", "stores.sql.generic", "stores.sql.mysql", "stores.sql.postgresql"],
    ["stores.database_findings", "stores.redis_client", "stores.sql.notify", "stores.sql.sqlite"],
    ["stores.sql", "stores.connections", "stores.redis_requests", "holding"],
    ["stores.memory", "stores.redis", "stores.database", "guard"],
    ["blocks", "claims", "decorators", "options"],
    ["leader", "oversight"],
    ["service"],
    ["conf"],
    ["__init__"],
    ["recorder"],
    ["history"],
    [
        "checks",
        "testing.case",
        "testing.kit",
        "rows",
        "management.arguments",
        "management.output",
        "management.parser",
        "management.child",
    ],
    ["places", "timeline", "templatetags.locks", "management.run", "management.probe"],
    ["listing", "admin_actions", "management.subcommands.base"],
    [f"management.subcommands.{name}" for name in SUBCOMMANDS],
    ["management.subcommands"],
    ["apps", "admin", "management.commands.locks", "testing.contract", "testing.async_contract"],
    ["testing"],
    ["testing.pytest_plugin"],
    ["contrib.celery", "contrib.dramatiq", "contrib.huey"],
    ["contrib.debug_toolbar", "contrib.health_check", "contrib.opentelemetry", "contrib.prometheus", "contrib.sentry"],
    ["contrib.django_celery_beat"],
]
ROW_OF = {room: number for number, row in enumerate(ROWS) for room in row}
WITHIN_ROW = {("stores.sql.faults", "stores.sql.base")}


def rooms() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)
        if "migrations" not in parts and path.read_text().strip():
            found[name] = path
    return found


def imported_rooms(room: str, path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["django_locks", *path.relative_to(PACKAGE).parts[:-1]]
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            modules |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    names = {module.removeprefix("django_locks.") for module in modules if module.startswith("django_locks.")}
    return (names & rooms().keys()) - {room}


@pytest.mark.parametrize(("room", "path"), rooms().items(), ids=rooms())
def test_import_arrows_point_one_way(room: str, path: Path) -> None:
    wrong = {
        other
        for other in imported_rooms(room, path)
        if ROW_OF[other] >= ROW_OF[room] and (room, other) not in WITHIN_ROW
    }
    assert wrong == set()


def test_every_room_has_a_row() -> None:
    assert set(ROW_OF) == set(rooms())


def test_package_imports_before_any_settings_exist() -> None:
    script = "import django_locks, sys; assert 'django_locks.models' not in sys.modules"
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, env={})
    assert (run.returncode, run.stderr) == (0, "")


def test_public_names_are_pinned() -> None:
    assert set(django_locks.__all__) == {
        "SKIPPED",
        "AlreadyHeld",
        "InvalidLockStore",
        "LeaseInfo",
        "LeaseLost",
        "LockError",
        "LockGuard",
        "LockNotAcquired",
        "LockStoreDoesNotExist",
        "LocksService",
        "Skipped",
        "StoreUnavailable",
        "__version__",
        "locks",
        "with_lock",
    }
    assert all(hasattr(django_locks, name) for name in django_locks.__all__)


def test_names_are_loaded_when_they_are_used() -> None:
    code = "import sys, django_locks; print([name for name in sys.modules if name.startswith('django_locks.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
    assert set(django_locks.__all__) <= set(dir(django_locks))
    for name in django_locks.__all__:
        assert getattr(django_locks, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'acquire'"):
        django_locks.acquire  # noqa: B018
