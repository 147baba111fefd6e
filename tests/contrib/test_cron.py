"""Plain cron: the same line on every host, and each run a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.contrib.conftest import ROOT

MANAGE = [sys.executable, str(ROOT / "testproject" / "manage.py")]


def test_line_in_two_crontabs_runs_once(site, busy):
    guard = busy("cron:line")
    env = {**site.env, "DJANGO_SETTINGS_MODULE": "testproject.settings", "LOCKS_STORE": "redis", "REDIS_URL": site.url}
    line = ["locks", "run", "cron:line", "--", "echo", "ran"]
    busy_run = subprocess.run([*MANAGE, *line], env=env, capture_output=True, text=True, timeout=60)
    guard.release()
    run = subprocess.run([*MANAGE, *line], env=env, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "ran\n"), run.stderr
    assert "ran" not in busy_run.stdout
    assert busy_run.returncode in (0, 75), busy_run.stderr
    assert "cron:line" in busy_run.stdout + busy_run.stderr
