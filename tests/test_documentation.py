"""The README and the documentation: every code block and every command line runs, and nothing is left out."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from django_locks import checks, signals
from django_locks.conf import DEFAULTS
from django_locks.management.commands.locks import Command
from django_locks.management.parser import LocksParser, add_common_options
from django_locks.management.subcommands import SUBCOMMANDS
from tests.documents import PAGES, ROOT, blocks, outside

LANGUAGES = {"python", "sh", "sql", "text", "yaml", "ini", "dockerfile", "json", "toml"}
NOT_RUN = 0  # blocks with the comment <!-- not run: why -->


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page))], ids=named)
def test_every_block_of_the_page_runs(page, sqlite_env, tmp_path):
    database = shutil.copy(sqlite_env["DATABASE_URL"].removeprefix("sqlite:///"), tmp_path)
    env = {**sqlite_env, "DATABASE_URL": f"sqlite:///{database}", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.documents.world", named(page)],
        env={**env, "DJANGO_SETTINGS_MODULE": "tests.documents.settings"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_has_a_language_and_what_is_not_run_a_reason(page):
    found = list(blocks(page))
    assert {block.language for block in found} <= LANGUAGES, [str(block) for block in found]
    assert [number for number, line in outside(page) if re.match(r" {4,}\S", line) and "-" not in line[:6]] == []


def test_blocks_that_are_not_run_are_few_and_counted():
    assert len([block for page in PAGES for block in blocks(page) if block.reason]) == NOT_RUN


def test_the_two_commands_of_the_readme_are_what_a_newcomer_runs():
    lines = re.findall(r"^\s*(pip install uv && uv run [^#`\n]*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert lines == [
        "pip install uv && uv run testproject/manage.py demo",
        "pip install uv && uv run pytest",
    ]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"], ids=named)
def test_every_link_leads_to_a_file(page):
    text = "\n".join(line for _, line in outside(page))
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    missing = {target for target in targets if "://" not in target and not (page.parent / target).exists()}
    assert missing == set()


def read(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


def test_every_system_check_has_a_heading_of_its_own():
    ids = re.findall(r"^([EW]\d{3}) ", str(checks.__doc__), re.MULTILINE)
    assert re.findall(r"^## (.*)$", read("checks"), re.MULTILINE) == ids


def test_every_setting_is_described():
    assert set(re.findall(r"^`([A-Z_]+)`$", read("settings"), re.MULTILINE)) == set(DEFAULTS)


def test_every_subcommand_has_an_example():
    assert set(re.findall(r"^manage.py locks (\w+)", read("commands"), re.MULTILINE)) == set(SUBCOMMANDS)


def options_of(subcommand: str) -> set[str]:
    parser = argparse.ArgumentParser()
    parsers = parser.add_subparsers(parser_class=LocksParser)
    subparser = parsers.add_parser(subcommand)
    SUBCOMMANDS[subcommand].add_arguments(subparser)
    add_common_options(subparser, SUBCOMMANDS[subcommand].over_all, None)
    return set(subparser._option_string_actions)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_in_the_text_has_the_subcommand_and_options_that_it_names(page):
    text = "\n".join(line for _, line in outside(page))
    for line in re.findall(r"`(?:manage\.py )?locks (\w[^`]*)`", text):
        subcommand, *words = line.split(" -- ")[0].split()
        if subcommand != "SUBCOMMAND":
            assert {word for word in words if word.startswith("-")} <= options_of(subcommand), line


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_examples_of_the_help_are_read_by_their_parser(subcommand):
    examples = re.findall(r"Example: manage\.py locks (.*)", SUBCOMMANDS[subcommand].epilog)
    assert examples
    for example in examples:
        parser = Command().create_parser("manage.py", "locks")
        assert parser.parse_args(shlex.split(example)).subcommand == subcommand


def test_every_signal_is_described():
    named_here = set(re.findall(r"^\| `(\w+)` \|", read("observability"), re.MULTILINE))
    assert {name for name in vars(signals) if name.startswith(("lease_", "lock_"))} <= named_here


def test_every_page_is_in_the_table_of_contents():
    listed = {line for block in re.findall(r"```{toctree}(.*?)```", read("index"), re.DOTALL) for line in block.split()}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= listed


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="not in the sdist")
def test_public_ci_runs_what_decides_and_the_forms_are_well_formed():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["ci"]["steps"][-1] == {"run": ".ci/run"}
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")]
    assert [form for form in forms if {"name", "description", "body"} <= form.keys()] == forms != []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone knows which files are its own")
def test_no_file_names_a_registry_or_a_path_of_somebodys_machine():
    git = ["git", "-c", "safe.directory=*", "ls-files"]
    files = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    words = ("pypi" + ".org", "pythonhosted" + ".org", "ghcr" + ".io", "/home" + "/", "/root" + "/", "/work" + "/")
    texts = {name: (ROOT / name).read_bytes() for name in files if (ROOT / name).exists()}
    assert {name for name, text in texts.items() if any(word.encode() in text for word in words)} == set()
