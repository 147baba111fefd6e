"""The test project, with the test database where the environment says."""

import os

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES

if os.environ.get("TEST_DATABASE_NAME"):
    DATABASES["default"]["TEST"] = {"NAME": os.environ["TEST_DATABASE_NAME"]}
