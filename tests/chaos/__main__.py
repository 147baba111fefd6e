"""``uv run python -m tests.chaos --store redis --minutes 1 --seed 5``"""

from __future__ import annotations

import argparse
import os
import random
import sys
from contextlib import ExitStack


def main() -> int:
    from tests.chaos.run import run
    from tests.chaos.sites import sites
    from tests.servers import databases

    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Disturb a store and those who use it.")
    parser.add_argument("--store", choices=sites(), default="redis")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as stack:
        has_data = options.store in ("postgresql", "mariadb", "sqlite")
        data = {} if has_data else stack.enter_context(databases.postgres()).settings
        seconds, site = options.minutes * 60, sites()[options.store]
        result = run(options.store, site, data, seconds=seconds, seed=options.seed, workers=options.workers)
    print(result.report())
    return 1 if result.verdict.violations else 0


if __name__ == "__main__":
    import django

    from tests.ram import use_ram
    from tests.servers.databases import use_pymysql

    use_ram()
    use_pymysql()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    sys.exit(main())
