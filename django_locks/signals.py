"""What happens to locks, for those who want to know. Receivers' errors are logged, and never reach a holder.

The keyword arguments are kept stable; take ``**kwargs`` for those that may come. All have ``alias``, ``name`` (as the
caller wrote it) and ``template``: what the name was made from, ``"import:{tenant}"``, of which there are few, for the
labels of metrics. For a ``with_lock`` without a text it is the function's module and qualified name; for leaders and
``manage.py locks run`` the name itself; for names that code gives to `LocksService` directly it is ``""``.

Sent by the class `LockGuard`, the first three with ``guard``:

``lease_acquired``
    A lock was granted. ``waited``: seconds from the call to the grant, the store's answer included.
``lease_released``
    The lease was still ours, and has been given back. ``outcome`` is ``"released"``, or ``"failed"`` if its block ended
    in an exception, whose class ``error`` is (else ``None``). ``held``: seconds since the grant.
``lease_lost``
    It is not ours any more; ``reason`` says why. ``held``: seconds since the grant. Sent once, from another thread.
``lock_refused``
    Somebody else has it, and the caller waits no longer. ``waited``: seconds since the call. ``lease``: the `LeaseInfo`
    of the holder; ``None`` if it was free again when asked, and from ``try_acquire``, which does not ask.

Sent by ``with_lock``, after ``lock_refused``, with ``lease`` as there:

``lock_skipped``
    A decorated function was not run.

Sent by `LocksService`, with ``lease``, the `LeaseInfo` of the holder (``template`` is the caller's, mostly ``""``):

``lease_broken``
    Somebody freed the lock by force.
"""

from __future__ import annotations

from django.dispatch import Signal

lease_acquired = Signal()
lease_released = Signal()
lease_lost = Signal()
lease_broken = Signal()
lock_refused = Signal()
lock_skipped = Signal()
