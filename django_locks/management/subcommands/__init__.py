"""The subcommands of ``manage.py locks``, in the order of its help."""

from __future__ import annotations

from django_locks.management.subcommands.base import Subcommand
from django_locks.management.subcommands.doctor import Doctor
from django_locks.management.subcommands.extend import Extend
from django_locks.management.subcommands.history import History
from django_locks.management.subcommands.list import List
from django_locks.management.subcommands.pause import Pause
from django_locks.management.subcommands.prune import Prune
from django_locks.management.subcommands.release import Release
from django_locks.management.subcommands.resume import Resume
from django_locks.management.subcommands.run import Run
from django_locks.management.subcommands.show import Show
from django_locks.management.subcommands.wait import Wait
from django_locks.management.subcommands.watch import Watch

SUBCOMMANDS: dict[str, type[Subcommand]] = {
    kind.name: kind for kind in (List, Show, History, Watch, Run, Wait, Release, Extend, Pause, Resume, Prune, Doctor)
}
