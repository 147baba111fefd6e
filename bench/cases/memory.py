"""Locks within one process."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from bench.peers import available
from bench.results import Result
from bench.servers import World
from bench.timing import interleaved, ratio

NEEDS: set[str] = set()


def run(world: World, quick: bool) -> list[Result]:
    return [_pair(quick), _decorated(quick), _size()]


def _pair(quick: bool) -> Result:
    from django_locks import locks

    result = Result("Memory store: acquire and release")
    lock = threading.Lock()
    samples = interleaved({"django_locks": lambda: pair(locks), "threading.Lock": lambda: _bare(lock)}, 0.6, 200)
    result.take(samples)
    result.ratios["memory_pair_vs_threading_lock"] = ratio(samples, "django_locks", "threading.Lock")
    result.take(interleaved(available({"filelock": _filelock}, result.notes), 0.2 if quick else 2))
    held = locks.try_acquire("held")
    result.take(interleaved({"django_locks, refused": lambda: locks.try_acquire("held")}, 0.2, 200))
    held.release()
    result.notes.append("The bound in absolute time is 8 µs a pair.")
    return result


def pair(locks: Any, name: str = "bench") -> None:
    guard = locks.try_acquire(name)
    guard.release()


def _bare(lock: threading.Lock) -> None:
    lock.acquire()
    lock.release()


def _filelock() -> Any:
    import filelock

    lock = filelock.FileLock(str(Path(tempfile.mkdtemp(prefix="locks-bench-")) / "lock"))
    return lambda: (lock.acquire(), lock.release())


def _decorated(quick: bool) -> Result:
    from django_locks import locks, with_lock

    result = Result("Memory store: ways to take a lock around an empty body")

    def plain() -> None:
        return None

    def block() -> None:
        with locks.lock("block"):
            pass

    decorated, named = with_lock("decorated")(plain), with_lock("named:{number}")(lambda number: None)
    ways = {"no lock": plain, "with locks.lock(…)": block, "@with_lock": decorated}
    result.take(interleaved({**ways, '@with_lock("…{field}")': lambda: named(7)}, 0.3 if quick else 2, 200))
    return result


def _size() -> Result:
    import tracemalloc

    from django_locks import locks

    number = 2000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    guards = [locks.try_acquire(f"size:{place}") for place in range(number)]
    size = (tracemalloc.get_traced_memory()[0] - before) / number
    tracemalloc.stop()
    for guard in guards:
        guard.release()
    result = Result("Memory a held lock (guard and lease, memory store)", unit="bytes")
    from bench.results import Row

    result.rows.append(Row("django_locks", size))
    return result
