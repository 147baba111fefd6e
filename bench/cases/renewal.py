"""What it costs to keep leases alive."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from bench.crew import Crew
from bench.results import Result, Row
from bench.servers import World

NEEDS = {"redis"}


def run(world: World, quick: bool) -> list[Result]:
    numbers = (1000,) if quick else (1, 100, 1000)
    cpu = Result("Redis: CPU of a process that keeps leases of a TTL of 3 s", unit="% of a core")
    size = Result("Redis: memory for them", unit="MB")
    for number in numbers:
        crew = Crew(world, 1)
        try:
            ((used, grown, threads),) = crew.run(keep, number, 3.2 if quick else 15.0)
        finally:
            crew.close()
        cpu.rows.append(Row(f"{number:,} leases", used, note=f"{threads} threads"))
        size.rows.append(Row(f"{number:,} leases", grown))
        if number == 1000:
            cpu.ratios["redis_renewal_cpu"] = used
    size.notes.append("The bound for 1,000 leases is 5 MB.")
    return [cpu, size]


def keep(barrier: Any, number: int, seconds: float) -> tuple[float, float, int]:
    """Hold so many leases; return the CPU in per cent of a core, the growth in MB and the number of threads."""
    import threading

    import psutil

    from django_locks import locks

    ours, process = locks.using("renewal"), psutil.Process(os.getpid())
    with ours.lock("warm up"):
        time.sleep(1.2)  # a renewal: the machinery is there
    before = process.memory_info().rss
    guards = [ours.try_acquire(f"renewed:{place}") for place in range(number)]
    begin, cpu = time.monotonic(), _cpu()
    time.sleep(seconds)
    used = (_cpu() - cpu) / (time.monotonic() - begin) * 100
    grown, threads = (process.memory_info().rss - before) / 1e6, threading.active_count()
    for guard in guards:
        guard.check()
        guard.release()
    return used, grown, threads


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
