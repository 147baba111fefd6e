"""The rooms of the package, and the way through them: imports point one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import django_locks

PACKAGE = Path(django_locks.__file__).parent

# Each room may import from the rows above its own, and nothing else of the package.
ROWS = [
    {"exceptions", "values", "clock", "signals", "instants", "text"},
    {"naming", "stores.base", "models"},
    {"stores.sql", "stores.redis_scripts", "stores.memory", "stores.redis", "stores.database"},
    {"guard", "decorators"},
    {"service"},
    {"conf"},
    {""},
    {"checks", "testing", "rows", "management.arguments", "management.run"},
    {"apps", "admin", "management.commands.locks"},
]


def room(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix("__init__").removesuffix(".")


def imports(path: Path) -> set[str]:
    """Return the rooms that a file imports, wherever in it."""
    base = ["django_locks", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            prefix = ".".join(base[: len(base) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [prefix, node.module]))
            found |= {f"{module}.{alias.name}" for alias in node.names} | {module}
    rooms = {room(path) for path in PACKAGE.rglob("*.py")}
    own = {
        name.removeprefix("django_locks").removeprefix(".") for name in found if name.split(".")[0] == "django_locks"
    }
    return {name for name in own if name in rooms and (name or "django_locks.__version__" in found)}


def type_checking_only(path: Path) -> bool:
    return False


def row_of(name: str) -> int:
    for number, row in enumerate(ROWS):
        if name in row or any(part and name.startswith(f"{part}.") for part in row):
            return number
    raise AssertionError(f"{name!r} has no row: say what it may import")


FILES = [
    path
    for path in PACKAGE.rglob("*.py")
    if "migrations" not in path.parts and room(path) not in {"stores", "management", "management.commands"}
]


@pytest.mark.parametrize("path", FILES, ids=room)
def test_import_arrows_point_one_way(path):
    own = row_of(room(path))
    tree = ast.parse(path.read_text())
    typing_only = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            typing_only |= {ast.unparse(child) for child in ast.walk(node) if isinstance(child, ast.ImportFrom)}
    for target in imports(path) - {"stores"}:
        if any(
            f"from .{target} import" in line or f"from django_locks.{target} import" in line for line in typing_only
        ):
            continue
        assert row_of(target) < own or (row_of(target) == own and target.startswith("stores.sql")), f"imports {target}"


def test_package_imports_before_any_settings_exist():
    script = (
        "import django_locks, sys; assert 'django_locks.models' not in sys.modules; print(django_locks.__version__)"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, env={})
    assert (run.returncode, run.stderr) == (0, "")


def test_public_names_are_pinned():
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
