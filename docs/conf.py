"""Sphinx: uv run --group docs sphinx-build -W docs docs/_build"""

import os
import sys

sys.path.insert(0, os.path.abspath(".."))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")

import django

django.setup()

import django_locks  # noqa: E402

project = "django_locks"
author = "the django_locks contributors"
release = version = django_locks.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "django_locks"
html_show_copyright = False
myst_enable_extensions = ["colon_fence", "deflist", "html_image"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 160
autodoc_member_order = "bysource"
default_role = "any"
nitpicky = False
suppress_warnings = ["ref.any"]
