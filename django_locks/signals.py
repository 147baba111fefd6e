"""What happens to locks, for those who want to know. Receivers' errors are logged, and never reach a holder.

Each is sent by the class `LocksService` with ``alias`` and ``name`` (as the caller wrote it), and:

``lease_acquired``
    ``guard``.
``lease_released``
    ``guard``. The lease was still ours and has been given back.
``lock_skipped``
    ``lease``: the `LeaseInfo` of the holder, or ``None`` if it was free again when asked. A decorated function was
    not run.
"""

from __future__ import annotations

from django.dispatch import Signal

lease_acquired = Signal()
lease_released = Signal()
lock_skipped = Signal()
