"""Keep what the tests write in memory, where that has room.

On a disk, one test's commit waits for what all others write: for seconds at times, and leases of a second run out.
Nothing here is about the disk; `bench/` is, and does without.
"""

from __future__ import annotations

import os
import shutil
import tempfile

RAM = "/dev/shm"
ENOUGH = 4 * 2**30


def use_ram() -> None:
    """Make temporary files there, in child processes too, unless the environment names another place."""
    try:
        free, flags = shutil.disk_usage(RAM).free, os.statvfs(RAM).f_flag
    except (OSError, AttributeError):  # not Linux
        return
    if "TMPDIR" not in os.environ and free >= ENOUGH and os.access(RAM, os.W_OK) and not flags & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = RAM


def short_root() -> str | None:
    """Return a folder for temporary folders whose path leaves room for the name of a socket (some 100 bytes)."""
    root = tempfile.gettempdir()
    return root if len(root) < 20 or os.name == "nt" else "/tmp"
