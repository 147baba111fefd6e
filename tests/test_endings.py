"""How a process that holds leases ends: by itself, by a signal, while its store hangs, and over forks."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time

import pytest

from django_locks import locks
from tests.crew import Spec
from tests.faulty_sites import BOTH, LONG, SOME, Script
from tests.renewing import in_child, wait_for

ENDINGS = {
    "falls off its end": ("done()", 0, ""),
    "unhandled exception": ("done(); raise ValueError('the work failed')", 1, "ValueError: the work failed"),
    "sys.exit": ("done(); sys.exit(7)", 7, ""),
    "daemon thread that works on": (
        "threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start(); done()",
        0,
        "",
    ),
    "daemon thread that holds": (
        """
held = threading.Event()
def work():
    with locks.lock("y", ttl=60):
        held.set()
        time.sleep(60)
threading.Thread(target=work, daemon=True).start()
held.wait()
done()""",
        0,
        "",
    ),
    "in a block": (
        "\nwith locks.lock('y', ttl=60):\n    done()\n    raise ValueError('the work failed')",
        1,
        "ValueError: the work failed",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
@SOME
def test_process_that_ends_frees_its_locks_at_once(kind, ending, site_of):
    site = site_of(kind)
    source, status, error = ENDINGS[ending]
    took = []
    while not took or (min(took) >= 0.5 + 0.2 and len(took) < 3):  # 0.2 s is what an interpreter takes to end
        script = Script(site.spec(), "guard = locks.acquire('x', ttl=60)\n" + source)
        code, out, err, end = script.end()
        assert code == status, err
        assert err.rstrip().endswith(error), err
        assert "django_locks" not in err
        assert list(locks.leases()) == []
        took.append(end - float(out.split()[-1]))
    assert min(took) < 0.5 + 0.2, took


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_process_that_is_gone_at_once_frees_its_locks_after_a_ttl(ending, site_of):
    site = site_of("redis")
    script = Script(site.spec(), f"guard = locks.acquire('x', ttl=1.2)\ntime.sleep(0.6)\ndone()\n{ending}")
    script.end()
    assert locks.get("x") is not None
    start = time.monotonic()
    assert wait_for(lambda: locks.get("x") is None) - start < 1.4


def test_process_whose_store_hangs_ends_within_seconds(site_of):
    for kind in ("redis", "postgresql"):
        site = site_of(kind)
        script = Script(site.spec(), "guard = locks.acquire('x', ttl=60)\ndone()\nsys.stdin.readline()\ndone()")
        script.read()
        site.server.pause()
        try:
            script.process.send_signal(signal.SIGINT)
            start = time.monotonic()
            _, _, err, end = script.end()
        finally:
            site.server.resume()
        assert "KeyboardInterrupt" in err
        assert end - start < 2 + 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@SOME
def test_processes_of_multiprocessing_keep_and_free_locks_of_their_own(kind, method, site_of):
    site = site_of(kind)
    context = multiprocessing.get_context(method)
    with locks.lock("parent", ttl=0.9) as guard:
        children = [context.Process(target=keep_in_child, args=(site.spec(), place, method)) for place in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(30)
        assert [child.exitcode for child in children] == [0, 0]
        guard.check()


def keep_in_child(spec: Spec, place: int, method: str) -> None:
    if method == "spawn":
        spec.apply()
    assert locks.try_acquire("parent") is None
    with locks.lock(f"child{place}", ttl=0.6) as guard:
        time.sleep(1.2)
        guard.check()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@SOME
def test_forked_children_keep_locks_of_their_own(kind, site_of):
    site_of(kind)

    def child() -> bool:
        assert locks.try_acquire("parent") is None
        with locks.lock("child", ttl=0.45) as guard:
            time.sleep(0.6)
            guard.check()
        return True

    with locks.lock("parent", ttl=0.45) as guard:
        for _ in range(20 if LONG else 4):
            time.sleep(random.random() * 0.05)
            assert in_child(child)
            guard.check()


# SIGTERM

COMMAND = """
from django.core.management.base import BaseCommand
@with_lock("x", ttl=60)
class Command(BaseCommand):
    def handle(self, **options):
        try:
            done()
            time.sleep(60)
        finally:
            FINALLY
Command().run_from_argv(["manage.py", "work"])
"""


@BOTH
def test_terminated_command_unwinds_while_it_holds_and_frees_its_lock(kind, site_of):
    site = site_of(kind)
    check = "time.sleep(0.3); print('held' if locks.get('x') else 'free', flush=True)"
    script = Script(site.spec(), COMMAND.replace("FINALLY", check))
    script.read()
    script.process.terminate()
    start = time.monotonic()
    code, out, err, end = script.end()
    assert (code, out, err) == (143, "held\n", "")
    assert end - start < 1.3
    assert locks.get("x") is None


@pytest.mark.parametrize("fault", ["stop", "pause"])
@BOTH
def test_terminated_command_with_an_unreachable_store_ends_within_seconds(kind, fault, site_of):
    site = site_of(kind)
    script = Script(site.spec(), COMMAND.replace("FINALLY", "print('unwound', flush=True)"))
    script.read()
    getattr(site.server, fault)()
    try:
        script.process.terminate()
        start = time.monotonic()
        code, out, err, end = script.end()
        print(f"ended after {end - start:.1f} s: {err}")
    finally:
        script.process.kill()
        site.server.start() if fault == "stop" else site.server.resume()
    assert (code, out) == (143, "unwound\n")
    assert end - start < 8
