"""``python -m bench [NAME …] [--json] [--quick]``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

from . import report
from .results import Result
from .servers import World, running

CASES = (
    "memory",
    "redis",
    "redis_async",
    "databases",
    "rows",
    "entries",
    "contention",
    "handoff",
    "renewal",
    "listing",
    "start",
)
DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(arguments: list[str]) -> int:
    asked = _arguments(arguments)
    begin = time.monotonic()
    os.environ["PYTHONWARNINGS"] = "ignore"
    cases = [importlib.import_module(f"bench.cases.{name}") for name in asked.names or CASES]
    with running(set().union(*(case.NEEDS for case in cases))) as world:
        results = [result for case in cases for result in _run(case, world, asked.quick)]
        about = report.environment(world, quick=asked.quick, seconds=time.monotonic() - begin)
    if asked.json:
        print(json.dumps(report.as_object(results, about, world.notes), indent=2))
    else:
        print(report.as_text(results, about, world.notes))
    if asked.write:
        report.write(DOCS, results, about, world.notes)
    return 0


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="end within 45 seconds")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its chart")
    return parser.parse_args(arguments)


def _run(case: ModuleType, world: World, quick: bool) -> list[Result]:
    begin = time.monotonic()
    print(f"{case.__name__} …", end=" ", file=sys.stderr, flush=True)
    try:
        results: list[Result] = case.run(world, quick)
    except Exception as error:
        world.notes.append(f"{case.__name__} failed: {type(error).__name__}: {error}")
        results = []
    print(f"{time.monotonic() - begin:.1f} s", file=sys.stderr)
    return results


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
