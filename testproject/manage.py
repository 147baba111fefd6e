#!/usr/bin/env python
"""Django's command line for the test project. Works from any directory."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # The repository, in place of this directory: the package is testproject.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
