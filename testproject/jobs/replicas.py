"""Commands of this project as processes of their own, whose output is shown while it comes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"


class Replica:
    """A running ``manage.py`` command. Each line that it writes goes to ``show`` and is kept."""

    def __init__(
        self, label: str, command: list[str], env: Mapping[str, str], show: Callable[[str, str], None]
    ) -> None:
        self.label = label
        self.lines: list[str] = []
        self._show = show
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, str(MANAGE), *command],
            env={**os.environ, **env, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def fence(self) -> int | None:
        """The fence that the replica says it has, or ``None`` if it did not run."""
        found = re.search(r"Running with fence (\d+)", self.text)
        return int(found[1]) if found else None

    @property
    def holder(self) -> str | None:
        """The holder that the replica names as the reason for its skip, or ``None`` if it did not skip."""
        found = re.search(r"Skipped: .* is held by (\S+) for ", self.text)
        return found[1] if found else None

    def kill(self) -> None:
        """End it by SIGKILL, as the kernel does when memory runs out."""
        self._process.kill()

    def terminate(self) -> None:
        """Tell it to end, by SIGTERM."""
        self._process.terminate()

    def wait(self, timeout: float) -> int | None:
        """Return the exit code, or ``None`` if it has not ended within so many seconds."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(timeout)
        return code

    def wait_for(self, what: str, timeout: float) -> bool:
        """Wait for a line with this text."""
        with self._changed:
            self._changed.wait_for(lambda: what in self.text or self._ended, timeout)
            return what in self.text

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101
        for line in self._process.stdout:
            self._show(self.label, line.rstrip())
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
