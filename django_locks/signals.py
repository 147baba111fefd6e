"""What happens to locks, for those who want to know. Receivers' errors are logged, and never reach a holder.

All have ``alias`` and ``name`` (as the caller wrote it). Sent by the class `LockGuard`, with ``guard``:

``lease_acquired``
    A lock was granted.
``lease_released``
    The lease was still ours, and has been given back. ``outcome`` is ``"released"``, or ``"failed"`` if its block ended
    in an exception, whose class ``error`` is (else ``None``).
``lease_lost``
    It is not ours any more; ``reason`` says why. Sent once, from another thread.

Sent by ``with_lock``, with ``lease``, the `LeaseInfo` of the holder (``None`` if it was free again when asked):

``lock_skipped``
    A decorated function was not run.

Sent by `LocksService`, with ``lease``, the `LeaseInfo` of the holder:

``lease_broken``
    Somebody freed the lock by force.
"""

from __future__ import annotations

from django.dispatch import Signal

lease_acquired = Signal()
lease_released = Signal()
lease_lost = Signal()
lease_broken = Signal()
lock_skipped = Signal()
