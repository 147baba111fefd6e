"""django-debug-toolbar: a panel of the locks that a request took, waited for, or was refused."""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import Any

from debug_toolbar.panels import Panel
from django.utils.translation import gettext as translated
from django.utils.translation import gettext_lazy as _

from django_locks import signals
from django_locks.guard import LockGuard

Row = dict[str, Any]  # of what the toolbar can keep as JSON


class LocksPanel(Panel):
    """In ``DEBUG_TOOLBAR_PANELS``: ``"django_locks.contrib.debug_toolbar.LocksPanel"``."""

    is_async = True
    title = _("Locks")
    template = "django_locks/debug_toolbar.html"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: list[Row] = []

    @classmethod
    def ready(cls) -> None:
        signals.lease_acquired.connect(_acquired, dispatch_uid=__name__)
        signals.lease_released.connect(_released, dispatch_uid=__name__)
        signals.lease_lost.connect(_lost, dispatch_uid=__name__)
        signals.lock_refused.connect(_refused, dispatch_uid=__name__)

    @property
    def nav_subtitle(self) -> str:
        stats: dict[str, Any] = self.get_stats()  # type: ignore[no-untyped-call]
        return translated("%(taken)d taken, %(refused)d refused") % stats

    def enable_instrumentation(self) -> None:
        _panel.set(self)

    def disable_instrumentation(self) -> None:
        _panel.set(None)

    def generate_stats(self, request: Any, response: Any) -> None:
        refused = sum(row["outcome"] == "refused" for row in self.rows)
        waited = sum(row["waited"] for row in self.rows)
        self.record_stats(  # type: ignore[no-untyped-call]
            {"rows": self.rows, "taken": len(self.rows) - refused, "refused": refused, "waited": waited}
        )


def _note(alias: str, name: str, template: str, waited: float, outcome: str, holder: str) -> Row | None:
    panel = _panel.get()
    if panel is None:
        return None
    row = {"store": alias, "name": name, "template": template, "waited": waited * 1000, "outcome": outcome}
    panel.rows.append({**row, "holder": holder, "held": None})
    return panel.rows[-1]


def _acquired(*, alias: str, name: str, template: str, guard: LockGuard, waited: float, **kwargs: Any) -> None:
    row = _note(alias, name, template, waited, "held", guard.holder)
    if row is not None:
        _rows[guard] = row


def _refused(*, alias: str, name: str, template: str, waited: float, lease: Any, **kwargs: Any) -> None:
    _note(alias, name, template, waited, "refused", lease.holder if lease else "")


def _released(*, guard: LockGuard, outcome: str, held: float, **kwargs: Any) -> None:
    _end(guard, outcome, held)


def _lost(*, guard: LockGuard, held: float, **kwargs: Any) -> None:
    _end(guard, "lost", held)


def _end(guard: LockGuard, outcome: str, held: float) -> None:
    row = _rows.get(guard)
    if row is not None:
        row.update(outcome=outcome, held=held * 1000)


_panel: ContextVar[LocksPanel | None] = ContextVar("django_locks_panel", default=None)
_rows: weakref.WeakKeyDictionary[LockGuard, Row] = weakref.WeakKeyDictionary()
