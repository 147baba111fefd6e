from __future__ import annotations

from tests.scenarios.conftest import database_store as database_store
from tests.scenarios.conftest import every_store as every_store
