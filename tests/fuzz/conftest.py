from __future__ import annotations

import pytest

from tests.scenarios.conftest import database_store as database_store
from tests.scenarios.conftest import every_store as every_store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # hypothesis looks at the state of `random`, which threads of servers' clients use meanwhile.
    for item in items:
        if "tests/fuzz/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"))
