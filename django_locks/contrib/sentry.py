"""Sentry Crons: check-ins of the runs that a lock lets through, and of no others.

A replica that is skipped checks in nothing, and a run whose lease is lost is an error although its body went well. A
decorator around ``with_lock`` would call a skip a success; one below it would not hear of the loss.
"""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from sentry_sdk.crons import capture_checkin
from sentry_sdk.crons.consts import MonitorStatus

from django_locks import signals
from django_locks.guard import LockGuard

if TYPE_CHECKING:
    from sentry_sdk.types import MonitorConfig

LONGEST_SLUG = 50


class _Monitor(NamedTuple):
    slug: str
    config: MonitorConfig | None


def monitor(template: str, config: MonitorConfig | None = None, *, slug: str | None = None) -> None:
    """Check in with Sentry whenever a lock of that template is taken, given back or lost.

    ``template``: the text given to ``with_lock``, or the function's module and qualified name if there was none; for
    ``manage.py locks run`` and leaders the lock's name. All locks of a template are one monitor. ``config``: Sentry's
    monitor configuration, which creates or updates the monitor. ``slug``: default: made from the template.
    """
    _monitors[template] = _Monitor(slug or _slug(template), config)
    signals.lease_acquired.connect(_acquired, dispatch_uid=__name__)
    signals.lease_released.connect(_released, dispatch_uid=__name__)
    signals.lease_lost.connect(_lost, dispatch_uid=__name__)


def _slug(template: str) -> str:
    slug = re.sub(r"[^a-z0-9_]+", "-", template.lower()).strip("-")[:LONGEST_SLUG]
    if not slug:
        raise ValueError(f"No slug can be made from {template!r}: give slug=.")
    return slug


def _acquired(*, template: str, guard: LockGuard, **kwargs: Any) -> None:
    if (of := _monitors.get(template)) is not None:
        check_in = capture_checkin(of.slug, status=MonitorStatus.IN_PROGRESS, monitor_config=of.config)
        if check_in is not None:
            _running[guard] = check_in


def _released(*, guard: LockGuard, outcome: str, held: float, **kwargs: Any) -> None:
    _check_out(guard, MonitorStatus.OK if outcome == "released" else MonitorStatus.ERROR, held)


def _lost(*, guard: LockGuard, held: float, **kwargs: Any) -> None:
    _check_out(guard, MonitorStatus.ERROR, held)


def _check_out(guard: LockGuard, status: str, held: float) -> None:
    of, check_in = _monitors.get(guard.template), _running.pop(guard, None)
    if of is not None and check_in is not None:
        capture_checkin(of.slug, check_in, status, held, of.config)


_monitors: dict[str, _Monitor] = {}
_running: weakref.WeakKeyDictionary[LockGuard, str] = weakref.WeakKeyDictionary()
