"""README.md of this folder names a test for each scenario, and each test that it names exists."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# fmt: off
IDS = [
    "B001", "B003", "B004", "B006", "B008", "B009", "B011", "B012", "B014", "B015", "B017", "B019", "B020", "B022",
    "B023", "B025", "B027", "B028", "B029", "B031", "B032", "B033", "B034", "B036", "B037", "B038", "B040", "B041",
    "B043", "B044", "B045", "B048", "B049", "B050", "B053", "B054", "B056", "B057", "B059", "B060", "B062", "B064",
    "B065", "B067", "B068", "B071", "B072", "B073", "B075", "B076", "B077", "B080", "B081", "B082", "B084", "B085",
    "B087", "B089", "B090", "B092", "B093", "B095", "B096", "B098", "B099", "B101", "B102", "B103", "B104", "B107",
    "B108", "B109", "B111", "B112", "B114", "B115", "B116", "B118", "B120",
]
# fmt: on

ROW = re.compile(r"^\| (B\d{3}) \| (.+) \|$", re.MULTILINE)
PART = re.compile(r"`([^`]+)`::|`([^`]+)`")


@cache
def rows() -> dict[str, str]:
    found = ROW.findall((HERE / "README.md").read_text())
    assert len(found) == len(dict(found)), "a scenario has two rows"
    return dict(found)


def named(row: str) -> list[tuple[str, str]]:
    """Return module and test of each test that a row names: "`module`::`test`, `another`; `module`::`test`"."""
    found, module = [], ""
    for is_module, test in PART.findall(row):
        if is_module:
            module = is_module
        else:
            found.append((module, test))
    return found


@cache
def found_in(module: str) -> set[str]:
    """Return the tests and test classes in a module, whose path begins here or at the root."""
    path = ROOT / f"{module}.py" if "/" in module else HERE / f"{module}.py"
    nodes = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in nodes if isinstance(node, kinds) and node.name.lower().startswith("test")}


def test_every_scenario_has_a_row_and_no_other_has() -> None:
    assert len(IDS) == 79
    assert sorted(rows()) == IDS


@pytest.mark.parametrize("scenario", IDS)
def test_every_test_that_is_named_exists(scenario: str) -> None:
    tests = named(rows()[scenario])
    assert tests, "no test is named"
    for module, test in tests:
        assert module, f"{test} has no module"
        assert any(fnmatch(each, test) for each in found_in(module)), f"{module} has no {test}"
