"""``uv run python -m tests.chaos --store redis --minutes 1 --seed 5``"""

from __future__ import annotations

import argparse
import os
import random
import sys
from contextlib import ExitStack


def main() -> int:
    from tests.chaos.run import TTL, Plan, run
    from tests.chaos.sabotage import WAYS
    from tests.chaos.sites import sites
    from tests.servers import databases

    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Disturb a store and those who use it.")
    parser.add_argument("--store", choices=sites(), default="redis")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--sabotage", choices=WAYS, default="", help="break the workers' copy of the product")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    plan = Plan(options.store, options.minutes * 60, options.seed, options.workers, options.sabotage)
    with ExitStack() as stack:
        needs_data = options.store not in ("postgresql", "mariadb", "sqlite")
        data = stack.enter_context(databases.postgres()).settings if needs_data else {}
        result = run(plan, stack.enter_context(sites()[plan.store](data, TTL)))
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
