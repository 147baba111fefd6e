"""Run the blocks of one page, in order and in one name space: ``python -m tests.documents.world PAGE``.

A process of its own, in an empty folder, with the database that DATABASE_URL names: examples register tasks, signals
and admin pages.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging.config
import re
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.core.management.base import BaseCommand  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import override_settings  # noqa: E402

from django_locks.checks import check_locks  # noqa: E402
from django_locks.stores.base import BaseStore  # noqa: E402
from tests.documents import ROOT, Block, blocks  # noqa: E402
from tests.documents.commands import run_script  # noqa: E402
from tests.documents.data import READERS  # noqa: E402
from tests.documents.presupposed import names  # noqa: E402

Names = dict[str, Any]


def main(page: Path) -> None:
    module = sys.modules["__page__"] = types.ModuleType("__page__")  # what is registered by its dotted path is found
    space = vars(module)
    space.update(names(page.stem))
    for block in blocks(page):
        if not block.reason:
            run(block, space)


def run(block: Block, space: Names) -> None:
    try:
        if block.language == "python":
            run_python(block, space)
        elif block.language == "sql":
            run_sql(block.text)
        elif block.language == "sh":
            run_script(block.text, Path.cwd())
        elif block.language != "text":
            READERS[block.language](block.text, Path.cwd())
    except BaseException as error:
        error.add_note(f"in the block of {block}")
        raise


def run_python(block: Block, space: Names) -> None:
    before = dict(space)
    code = compile(
        "\n" * (block.line - 1) + block.text, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, space))
    else:
        exec(code, space)
    for name, value in list(space.items()):
        if before.get(name) is not value:
            try_out(name, value, space)


def try_out(name: str, value: Any, space: Names) -> None:
    """Do with what a block has defined what it is there for."""
    if name == "LOCKS":
        check_entries(value, space)
    elif name == "INSTALLED_APPS":
        assert "django_locks" in value
    elif name.startswith("test_"):
        value()
    elif name == "LOGGING":
        logging.config.dictConfig(value)
    elif isinstance(value, type) and value.__module__ == "__page__":
        try_out_class(value)


def try_out_class(value: type) -> None:
    if issubclass(value, BaseCommand):
        call_command(value())
    elif issubclass(value, unittest.TestCase):
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
        assert result.testsRun
        assert result.wasSuccessful(), [*result.errors, *result.failures]


def check_entries(entries: Names, space: Names) -> None:
    """Let the system checks say what they think of LOCKS, with the stores of the page."""
    stores = {name: value for name, value in space.items() if isinstance(value, type) and issubclass(value, BaseStore)}
    shop = sys.modules["shop.locks"] = types.ModuleType("shop.locks")
    vars(shop).update(stores)
    with override_settings(LOCKS=entries):
        assert check_locks(None) == []


def run_sql(text: str) -> None:
    """Run a statement with numbers for its parameters; the tables that it names are made first."""
    with connection.cursor() as cursor:
        for table in re.findall(r"(?:UPDATE|FROM|INTO) (\w+)", text):
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {table} (id integer, body text, fence bigint)")
        cursor.execute(text, [1] * text.count("%s"))


if __name__ == "__main__":
    main(ROOT / sys.argv[1])
