"""What it costs a process to have locks at all."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import django_locks
from bench.results import Result, Row
from bench.servers import World
from bench.timing import percentile

NEEDS: set[str] = set()

SET_UP = """
import time
from django.conf import settings
settings.configure(INSTALLED_APPS=[{apps}], DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3",
  "NAME": ":memory:"}}}}, LOCKS={{"default": {{"BACKEND": "django_locks.stores.memory.MemoryStore"}}}})
import django; django.setup()
import django.db.models
from django.core.management.base import BaseCommand
from django.core.management import call_command
begin = time.process_time()
{then}
print(time.process_time() - begin)
"""
APPS = '"django.contrib.contenttypes", "django.contrib.auth"'
IMPORTS = {
    "import django_locks": "import django_locks",
    "with_lock, locks": "from django_locks import locks, with_lock",
}
PLAIN = """
class Command(BaseCommand):
    def handle(self, *args, **options):
        pass
call_command(Command())
"""
LOCKED = f"from django_locks import with_lock{PLAIN}".replace("class Command", '@with_lock("x")\nclass Command')


def run(world: World, quick: bool) -> list[Result]:
    return [_imports(5)] if quick else [_imports(25), _commands(9)]


def _imports(rounds: int) -> Result:
    compileall.compile_dir(Path(django_locks.__file__).parent, quiet=1)
    result = Result("import django_locks, in a process that has set up Django", unit="ms")
    for who, then in IMPORTS.items():
        took = [float(_run(SET_UP.format(apps="", then=then))[0]) * 1000 for _ in range(rounds)]
        result.rows.append(Row(who, statistics.median(took), percentile(took, 0.99)))
    result.notes.append("CPU time, with Django's models imported before, as every project has them.")
    result.ratios["import_ms"] = result.rows[0].median
    return result


def _commands(rounds: int) -> Result:
    result = Result("A management command as a process, empty body, memory store", unit="ms")
    plain = SET_UP.format(apps=APPS, then=PLAIN)
    locked = SET_UP.format(apps=f'{APPS}, "django_locks"', then=LOCKED)
    took: dict[str, list[float]] = {"without a lock": [], "with_lock": []}
    for _ in range(rounds):
        for who, code in (("without a lock", plain), ("with_lock", locked)):
            took[who].append(_run(code)[1] * 1000)
    result.rows += [Row(who, statistics.median(all_), percentile(all_, 0.99)) for who, all_ in took.items()]
    return result


def _run(code: str) -> tuple[str, float]:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return done.stdout, time.perf_counter() - begin
