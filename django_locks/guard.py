"""One held lock, from its grant to its release."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import warnings
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from asgiref.sync import sync_to_async

from . import clock, signals
from .exceptions import LeaseLost, StoreUnavailable
from .fencing import Enforcement, fenced_atomic
from .grants import Taker, Terms
from .holding import ABANDONED, GIVEN_BACK, HELD, NOT_OURS, RELEASING, Holding, Left, State, leaving
from .renewal import keeper
from .stores.base import FAILED, RELEASED, Claim
from .tasks import CancelOnLoss, is_called_by_sync_code, see_through
from .transactions import after_transactions
from .values import Seconds, clean_duration, describe_duration

logger = logging.getLogger("django_locks")


class LockGuard(Holding):
    """A held lock. Leave it with `release`, or use it as a context manager, which releases on exit.

    While the guard lives, its lease is renewed at a third of the TTL. Without a success at two thirds of it the guard
    is lost, and stays so; at its end others may take the lock. With ``renew=False`` it is lost at the TTL.

    A guard that is dropped without a release is not renewed any more, and frees its lock only when the TTL has run
    out; it warns (`ResourceWarning`). Any thread may use and release it.
    """

    __slots__ = ()

    # Giving it back

    def release(self) -> bool:
        """Give the lock back and return True, or False if it was not ours any more or has been given back before.

        Raises `StoreUnavailable` if the store cannot be asked: the lease then still counts as held, and `release`
        may be called again.
        """
        return self._release(RELEASED)

    async def arelease(self) -> bool:
        """Do as `release`. If the task is cancelled meanwhile, the release is seen through first."""
        return await self.store.see_through(self._arelease(RELEASED))

    def detach(self) -> str:
        """Hand the lease on: renew it here no more, and return the owner for `LocksService.adopt` elsewhere.

        Until it is adopted it has the rest of its TTL. Raises `LeaseLost`.
        """
        self.check()
        if not self._end(State.DETACHED):
            raise self._loss()
        self._lift_enforcement()
        return str(self.owner)

    def discard_if_late(self) -> bool:
        """Drop a grant that came too late to be used, without a word."""
        return clock.now() >= self.deadline and self._end(ABANDONED)

    def keep_at_least(self, seconds: float | None) -> None:
        """Let the name stay taken until so long after the grant, even if released earlier."""
        self._terms = self._terms._replace(at_least=seconds)

    def _release(self, outcome: str) -> bool:
        if self._enforced:
            self._lift_enforcement()
        before = self._begin_release()
        if before is None:
            return False
        try:
            if self._has_stood_still():
                self._grant.store.acquire(*self._again())
            released = self._grant.store.release(*self._release_arguments(outcome))
        except BaseException:
            self._undo_release(before)
            raise
        return self._after_release(released, before, outcome)

    async def _arelease(self, outcome: str) -> bool:
        self._lift_enforcement()
        before = self._begin_release()
        if before is None:
            return False
        try:
            if self._has_stood_still():
                await self.store.aacquire(*self._again())
            released = await self.store.arelease(*self._release_arguments(outcome))
        except BaseException:
            self._undo_release(before)
            raise
        return self._after_release(released, before, outcome)

    def _again(self) -> tuple[str, str, float, str]:
        self._count(clock.now(), self.ttl)
        return self.key, self.owner, self.ttl, self.holder

    def _lift_enforcement(self) -> None:
        enforced, self._enforced = self._enforced, ()
        for enforcement in enforced:
            enforcement.lift()

    def _undo_release(self, before: State) -> None:
        self._state = before
        if before is HELD:
            self._count(self._sent, self._expires - self._sent)
            keeper.look(min(self.due, self.deadline))

    def _release_arguments(self, outcome: str) -> tuple[str, str, float, str]:
        at_least = self._terms.at_least
        hold_for = 0.0 if at_least is None else max(0.0, self._granted + at_least - clock.now())
        grant = self._grant
        return grant.key, grant.owner, hold_for, outcome

    def _after_release(self, released: bool, before: State, outcome: str) -> bool:
        if released:
            self._end(GIVEN_BACK, RELEASING)
            self._tell_released(outcome)
        elif before is HELD:
            self._lose(NOT_OURS, RELEASING)
        else:
            self._undo_release(before)
        return released

    def _tell_released(self, outcome: str) -> None:
        waiters = self._grant.store.waiters
        if waiters:
            waiters.released(self.key)
            waiters.wake(self.key.rpartition("#")[0])  # one of several places of a name
        if signals.lease_released.receivers:
            signals.lease_released.send_robust(
                type(self),
                alias=self.alias,
                name=self.name,
                template=self.template,
                guard=self,
                outcome=outcome,
                error=self._error,
                held=self._held(),
            )

    # Keeping it

    def extend(self, ttl: Seconds | None = None) -> None:
        """Renew the lease now, for ``ttl`` seconds (default: as before) from now; later renewals do the same.

        Raises `LeaseLost` if it is not ours any more, `StoreUnavailable` if the store cannot be asked, ValueError or
        TypeError for a bad duration. Never reaches beyond ``max_hold``.
        """
        seconds = self._extension(ttl)
        if self._has_stood_still():
            self.store.acquire(*self._again())
        claim, sent, overlaps = self.claim(clock.now(), seconds), clock.now(), self.in_flight != math.inf
        self._after_extension(claim, sent, overlaps, seconds, self.store.renew([claim]))

    async def aextend(self, ttl: Seconds | None = None) -> None:
        """Do as `extend`."""
        seconds = self._extension(ttl)
        if self._has_stood_still():
            await self.store.aacquire(*self._again())
        claim, sent, overlaps = self.claim(clock.now(), seconds), clock.now(), self.in_flight != math.inf
        self._after_extension(claim, sent, overlaps, seconds, await self.store.see_through(self.store.arenew([claim])))

    def _extension(self, ttl: Seconds | None) -> float:
        seconds = self.ttl if ttl is None else clean_duration(ttl, "ttl")
        self.check()
        return seconds

    def _after_extension(self, claim: Claim, sent: float, overlaps: bool, ttl: float, ours: set[str]) -> None:
        if self.key not in ours:
            self.refused()
            raise self._loss()
        before = self.ttl
        self._terms = self._terms._replace(ttl=ttl)
        # Which of two that were on their way at once came last is not known: count the shorter, and renew again.
        self.renewed(sent, min(claim[2], before) if overlaps else claim[2])
        if overlaps:
            self.due = sent
        keeper.look(min(self.due, self.deadline))
        self.check()

    # Writing under it

    def atomic(self, using: str | None = None) -> AbstractContextManager[None]:
        """Return a fenced transaction: a block that commits only if no newer holder has come, else ends in `LeaseLost`.

        It trusts no clock, and a holder that is paused inside of it does not block its successor (on SQLite, which has
        one writer at a time, it does). ``using``: the alias in DATABASES; default: that of the leases, or ``default``.

        Leases kept elsewhere than in that database are fenced by the table ``django_locks_fence``: there, all who write
        the guarded data must do so in this block. It is the outermost transaction, as Django's ``durable``, and nests
        within itself as savepoints.
        """
        return fenced_atomic(self, using)

    def enforce(self, using: str | None = None) -> None:
        """Let every query of the calling thread's connection raise `LeaseLost` once the lease is lost, until release.

        ``using``: the alias in DATABASES; default: that of the leases, or ``default``. Raises `LeaseLost`, and Django's
        `SynchronousOnlyOperation` in a task, whose queries run in another thread: see `aenforce`.
        """
        from django.utils.asyncio import async_unsafe

        self.check()
        install = async_unsafe("Use aenforce(), or enforce=True, in a task.")(Enforcement)
        self._enforced = (*self._enforced, install(self, using))

    async def aenforce(self, using: str | None = None) -> None:
        """Do as `enforce`, for the queries of the calling task and of those that it starts from then on."""
        self.check()
        self._enforced = (*self._enforced, await Enforcement.of_task(self, using))

    # A block

    def __enter__(self) -> Self:
        if self._terms.enforce:
            try:
                self.enforce()
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._error, outcome = kind, FAILED if error else RELEASED
        if not self._leave_later(outcome):
            self._leave(outcome)
        self._report_loss(error)

    def _leave(self, outcome: str) -> None:
        try:
            self._release(outcome)
        except StoreUnavailable as fault:
            self._warn_unreleased(fault)

    async def _aleave(self, outcome: str) -> None:
        try:
            await self.store.see_through(self._arelease(outcome))
        except StoreUnavailable as fault:
            self._warn_unreleased(fault)

    def _leave_later(self, outcome: str) -> bool:
        """Release when the open transactions have ended, so that the next holder never reads the state before."""
        if self._state is not HELD or self.lost:
            return False
        if not after_transactions(lambda: self._leave(outcome)):
            return False
        self._lift_enforcement()
        leaving[self.store, self.key] = Left(self, threading.get_ident())
        return True

    async def _aleave_later(self, outcome: str) -> bool:
        if not is_called_by_sync_code():
            return self._leave_later(outcome)
        try:  # the transaction is that of the thread which waits for this task
            return await see_through(sync_to_async(self._leave_later)(outcome))
        except RuntimeError:  # it does not wait any more
            return False

    def take_up(self, terms: Terms, taker: Taker, sent: float) -> LockGuard:
        """Return a new guard of the same lease, which was left inside the open transaction and is taken again."""
        self._end(State.DETACHED)
        return LockGuard(self._grant._replace(sent=sent), terms, taker)

    async def __aenter__(self) -> Self:
        self._body = CancelOnLoss()
        if self.lost:
            self._body.fire()
        if self._terms.enforce:
            try:
                await self.aenforce()
            except BaseException as error:
                await self.__aexit__(type(error), error, error.__traceback__)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        cancelled_by_loss = body is not None and body.leave(error)
        self._error, outcome = kind, FAILED if error else RELEASED
        if not await self._aleave_later(outcome):
            await self._aleave(outcome)
        if self.lost:
            await asyncio.sleep(0)  # a cancellation that the body was still to hear of comes first
        self._report_loss(None if cancelled_by_loss else error)

    def _report_loss(self, error: BaseException | None) -> None:
        if not self.lost or isinstance(error, LeaseLost):
            return
        if error is None:
            raise self._loss()
        error.add_note(self._loss_message())

    def _warn_unreleased(self, fault: StoreUnavailable) -> None:
        self._end(ABANDONED)
        logger.warning(
            "The lock %r could not be released, and is free when its TTL has run out: %s",
            self.name,
            fault,
            extra=self.log_extra(),
        )

    def __del__(self) -> None:
        self._lift_enforcement()
        if self._state is not HELD or self.is_inherited:
            return
        self._forget()
        if clock.now() < self._expires:
            warnings.warn(
                f"The guard of {self.name!r} (store {self.alias!r}) was dropped without a release: its lock stays "
                f"taken for {describe_duration(self._expires - clock.now())}. Call release(), or use a with block.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
