"""One held lease, from its grant to its end."""

from __future__ import annotations

import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

from asgiref.sync import sync_to_async

from . import clock, signals
from .exceptions import LeaseLost, StoreUnavailable
from .fencing import Enforcement, fenced_atomic
from .grants import Grant, Taker, Terms
from .logs import log_extra
from .renewal import keeper
from .stores.base import FAILED, RELEASED, BaseStore, Claim
from .tasks import CancelOnLoss, is_called_by_sync_code, see_through
from .transactions import after_transactions
from .values import Seconds, clean_duration, describe_duration, describe_lease

logger = logging.getLogger("django_locks")


NOT_OURS = "is not ours any more: somebody took it over, or freed it by force"


class Left(NamedTuple):
    """A guard whose block was left inside a transaction, and which is released when that ends."""

    guard: LockGuard
    thread: int  #: whose transaction it is


leaving: dict[tuple[BaseStore, str], Left] = {}
# Who in this process took a key of a store, and by which grant.
held_by: dict[tuple[BaseStore, str], tuple[str, Taker]] = {}

_NOBODY = ("",)

_pid = os.getpid()  # a system call, and asked for often

_turn = threading.RLock()  # one change of state at a time; re-entrant, since a signal handler may release


def _forget_parent() -> None:
    global _turn, _pid
    _turn, _pid = threading.RLock(), os.getpid()
    held_by.clear()
    leaving.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


class _State(Enum):
    HELD = "held"
    RELEASING = "sent back"  # its release is on its way: what a renewal hears meanwhile is no loss
    RELEASED = "released"
    DETACHED = "detached"
    ABANDONED = "abandoned"  # its block was left while the store was unreachable: not renewed, but may be released
    LOST = "lost"


# Python 3.11 takes ten times as long for a member of an enumeration as for a global.
_HELD, _RELEASING, _RELEASED, _ABANDONED, _LOST = (
    _State.HELD,
    _State.RELEASING,
    _State.RELEASED,
    _State.ABANDONED,
    _State.LOST,
)


class LockGuard:
    """A held lock. Leave it with `release`, or use it as a context manager, which releases on exit.

    While the guard lives, its lease is renewed at a third of the TTL. Without a success at two thirds of it the guard
    is lost, and stays so; at its end others may take the lock. With ``renew=False`` it is lost at the TTL.

    A guard that is dropped without a release is not renewed any more, and frees its lock only when the TTL has run
    out; it warns (`ResourceWarning`). Any thread may use and release it.
    """

    __slots__ = (
        "__weakref__",
        "_acquired",
        "_body",
        "_confined",
        "_enforced",
        "_error",
        "_expires",
        "_fault",
        "_grant",
        "_granted",
        "_pid",
        "_sent",
        "_state",
        "_terms",
        "_why_lost",
        "deadline",
        "due",
        "in_flight",
        "window",
    )

    def __init__(self, grant: Grant, terms: Terms, taker: Taker, age: float = 0.0, confined: bool = False) -> None:
        self._state = _ABANDONED  # unless the keeper can take it on
        self._enforced: tuple[Enforcement, ...] = ()
        self._grant = grant
        self._terms = terms
        self._granted = clock.now() - age
        self._acquired = clock.epoch() - age
        self._pid = _pid
        self._why_lost = ""
        self._fault = ""  # text: an exception's frames know the whole batch, and would keep dropped guards alive
        self._body: CancelOnLoss | None = None
        self._error: type[BaseException] | None = None
        self.in_flight = math.inf
        self._confined = confined
        self._count(grant.sent, terms.ttl if terms.max_hold is None else self._capped(terms.ttl, grant.sent))
        if not confined:
            keeper.add(self)
        self._state = _HELD
        held_by[grant.store, grant.key] = grant.owner, taker

    # What it is

    @property
    def name(self) -> str:
        """The name as the caller wrote it, without ``KEY_PREFIX``."""
        return self._grant.name

    @property
    def alias(self) -> str:
        """The alias of the store in ``LOCKS``."""
        return self._grant.store.alias

    @property
    def owner(self) -> str:
        """The secret that proves this grant. Keep it out of logs."""
        return self._grant.owner

    @property
    def holder(self) -> str:
        """The label that others see."""
        return self._grant.holder

    @property
    def template(self) -> str:
        """What the name was made from, as ``"import:{tenant}"``; ``""`` for a name that was given to the service."""
        return self._grant.template

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of every earlier grant of this name."""
        return self._grant.fence

    @property
    def ttl(self) -> float:
        """Seconds from a grant or a renewal to the expiry."""
        return self._terms.ttl

    @property
    def acquired_at(self) -> datetime:
        """When the lock was granted, aware UTC by this host's clock."""
        return clock.moment(self._acquired)

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is renewed, aware UTC by this host's clock."""
        return self.acquired_at + timedelta(seconds=self._expires - self._granted)

    @property
    def remaining(self) -> float:
        """Seconds until the store lets the lease expire unless it is renewed; 0 when it is over.

        Counted by this host's clock from before the request was sent, so never overstated.
        """
        if self.lost or self._state is not _HELD:
            return 0.0
        return max(0.0, self._expires - (self._sent if self._confined else clock.now()))

    @property
    def lost(self) -> bool:
        """Is the lease over although it was not given back? No I/O. In a forked child always true."""
        if self._state is _HELD:
            if self._pid != _pid:
                self._why_lost = "belongs to the parent of this process: take it anew after a fork"
                self._end(_LOST)
            elif clock.now() >= self.deadline:
                self.expire()
        return self._state is _LOST

    @property
    def released(self) -> bool:
        """Has the lease been given back?"""
        return self._state is _RELEASED

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is still ours. No I/O."""
        if self.lost or self._state is not _HELD:
            raise self._loss()

    def __repr__(self) -> str:
        state = f"{self.remaining:.1f} s remaining" if self._state is _HELD else self._state.value
        return f"<LockGuard {self.name!r} of {self.alias!r}, fence {self.fence}, {state}>"

    # Giving it back

    def release(self) -> bool:
        """Give the lock back and return True, or False if it was not ours any more or has been given back before.

        Raises `StoreUnavailable` if the store cannot be asked: the lease then still counts as held, and `release`
        may be called again.
        """
        return self._release(RELEASED)

    async def arelease(self) -> bool:
        """Do as `release`. If the task is cancelled meanwhile, the release is seen through first."""
        return await see_through(self._arelease(RELEASED))

    def detach(self) -> str:
        """Hand the lease on: renew it here no more, and return the owner for `LocksService.adopt` elsewhere.

        Until it is adopted it has the rest of its TTL. Raises `LeaseLost`.
        """
        self.check()
        if not self._end(_State.DETACHED):
            raise self._loss()
        self._lift_enforcement()
        return self.owner

    def discard_if_late(self) -> bool:
        """Drop a grant that came too late to be used, without a word."""
        return clock.now() >= self.deadline and self._end(_ABANDONED)

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

    def _has_stood_still(self) -> bool:
        """Has a lease whose time stands still for its holder run out for its store?"""
        return self._confined and clock.now() >= self._expires

    def _again(self) -> tuple[str, str, float, str]:
        self._count(clock.now(), self.ttl)
        return self.key, self.owner, self.ttl, self.holder

    def _lift_enforcement(self) -> None:
        enforced, self._enforced = self._enforced, ()
        for enforcement in enforced:
            enforcement.lift()

    def _begin_release(self) -> _State | None:
        """Return the state to go back to if the release fails; None: there is nothing to release."""
        with _turn:
            before = self._state
            if self.lost if before is _HELD else before is not _ABANDONED:
                return None
            self._state, self.due = _RELEASING, math.inf
        return before

    def _undo_release(self, before: _State) -> None:
        self._state = before
        if before is _HELD:
            self._count(self._sent, self._expires - self._sent)
            keeper.look(min(self.due, self.deadline))

    def _release_arguments(self, outcome: str) -> tuple[str, str, float, str]:
        at_least = self._terms.at_least
        hold_for = 0.0 if at_least is None else max(0.0, self._granted + at_least - clock.now())
        grant = self._grant
        return grant.key, grant.owner, hold_for, outcome

    def _after_release(self, released: bool, before: _State, outcome: str) -> bool:
        if released:
            self._end(_RELEASED, _RELEASING)
            self._tell_released(outcome)
        elif before is _HELD:
            self._lose(NOT_OURS, _RELEASING)
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

    def _end(self, state: _State, since: _State = _HELD) -> bool:
        with _turn:
            if self._state is not since:
                return False
            self._state = state
        self._forget()
        return True

    def _forget(self) -> None:
        keeper.remove(self)
        grant = self._grant
        key = grant.store, grant.key
        if key in leaving and leaving[key].guard is self:
            del leaving[key]
        if held_by.get(key, _NOBODY)[0] == grant.owner:
            del held_by[key]

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
        self._after_extension(claim, sent, overlaps, seconds, await see_through(self.store.arenew([claim])))

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

    @property
    def store(self) -> BaseStore:
        """The store that granted it."""
        return self._grant.store

    @property
    def key(self) -> str:
        """The name as it is stored, with the prefix."""
        return self._grant.key

    def claim(self, now: float, ttl: float | None = None) -> Claim:
        """Return what to renew."""
        return self.key, self.owner, self._capped(ttl or self.ttl, now)

    def renewed(self, sent: float, ttl: float) -> None:
        """Count the lease from ``sent`` on, unless it is over: a lost guard never comes back to life."""
        with _turn:
            if self._state is _HELD and clock.now() < self.deadline and sent >= self._sent:
                self._fault = ""
                self._count(sent, ttl)

    def refused(self) -> None:
        """Take note that the store says: not yours."""
        self._lose(NOT_OURS)

    def failed(self, error: StoreUnavailable, again: float) -> None:
        """Take note that the store could not be asked, and is asked again soon: that is no loss yet."""
        if self._state is not _HELD:
            return
        if not self._fault:  # once an outage: a thousand leases that try again and again would fill the log
            logger.warning(
                "The lock %r could not be renewed, and is lost in %s unless it is: %s",
                self.name,
                describe_duration(self.deadline - clock.now()),
                str(error),
                extra=self.log_extra(),
            )
        self._fault = str(error)
        self.due = again

    def expire(self) -> None:
        """Lose the lease, as its time is over."""
        if self._fault:
            self._lose(f"could not be renewed in time, since its store is unreachable ({self._fault})")
        elif self._terms.max_hold is not None and self.deadline >= self._granted + self._terms.max_hold - 0.001:
            self._lose(f"was held for as long as max_hold allows, {describe_duration(self._terms.max_hold)}")
        elif self._terms.renew:
            self._lose(f"was not renewed in time for its TTL of {describe_duration(self.ttl)}")
        else:
            self._lose(f"has run out after its TTL of {describe_duration(self.ttl)}, without renewal")

    def _count(self, sent: float, ttl: float) -> None:
        self._sent = sent
        self._expires = sent + ttl
        terms = self._terms
        renews = terms.renew and (terms.max_hold is None or self._expires < self._granted + terms.max_hold - 0.001)
        self.window = ttl / 6
        if self._confined:
            self.due = self.deadline = math.inf
            return
        self.due = sent + ttl / 3 if renews else math.inf
        self.deadline = sent + ttl * 2 / 3 if renews else self._expires

    def _capped(self, ttl: float, now: float) -> float:
        if self._terms.max_hold is None:
            return ttl
        return min(ttl, max(self._granted + self._terms.max_hold - now, 0.001))

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

    @contextmanager
    def stand_still(self) -> Iterator[Callable[[], None]]:
        """Neither renew nor lose the lease meanwhile; enters with what to call when the block has renewed it."""
        before = self._sent, self._expires - self._sent
        self._confined, renewed_at = True, []
        self._count(*before)
        try:
            yield lambda: renewed_at.append(clock.now())
        finally:
            self._confined = False
            self._count(*((renewed_at[-1], self._capped(self.ttl, renewed_at[-1])) if renewed_at else before))
            keeper.look(min(self.due, self.deadline))

    def lose(self, why: str) -> NoReturn:
        """Take note that the lease is lost, and raise `LeaseLost`."""
        self._lose(why)
        raise self._loss()

    # Losing it

    def _lose(self, why: str, since: _State = _HELD) -> None:
        if not self._end(_LOST, since):
            return
        self._why_lost = why
        body = self._body  # read once: the task may be leaving it
        if body is not None:
            body.fire()
        keeper.announce(self._report_why)
        keeper.announce(self._signal_loss)
        if self._terms.on_lost is not None:
            keeper.announce(partial(self._terms.on_lost, self))

    def _report_why(self) -> None:
        if self._why_lost == NOT_OURS:
            self._why_lost = self._who_took_it()
        logger.error("%s", self._loss_message(), extra=self.log_extra())

    def _signal_loss(self) -> None:
        signals.lease_lost.send_robust(
            type(self),
            alias=self.alias,
            name=self.name,
            template=self.template,
            guard=self,
            reason=self._why_lost,
            held=self._held(),
        )

    def _who_took_it(self) -> str:
        try:
            lease = self.store.get(self.key)
        except StoreUnavailable:
            return NOT_OURS
        finally:
            self.store.leave_thread()
        if lease is None:
            return "was freed by force, or its store has forgotten it"
        return f"was taken over: it {describe_lease(lease)}"

    def _loss(self) -> LeaseLost:
        return LeaseLost(self._loss_message(), name=self.name, alias=self.alias, guard=self)

    def _loss_message(self) -> str:
        held = describe_duration(self._held())
        why = self._why_lost or f"has been {self._state.value}"
        return (
            f"The lease of {self.name!r} (store {self.alias!r}, holder {self.holder}, fence {self.fence}, taken {held} "
            f"ago) {why}. Somebody else may hold it: stop, and write nothing in its name."
        )

    def _held(self) -> float:
        return clock.now() - self._granted

    def log_extra(self) -> dict[str, object]:
        """Return what a log record about this guard carries as its ``extra``."""
        return log_extra(self.name, self.alias, holder=self.holder, fence=self.fence, template=self.template)

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
            await see_through(self._arelease(outcome))
        except StoreUnavailable as fault:
            self._warn_unreleased(fault)

    def _leave_later(self, outcome: str) -> bool:
        """Release when the open transactions have ended, so that the next holder never reads the state before."""
        if self._state is not _HELD or self.lost:
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
        self._end(_State.DETACHED)
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
        self._report_loss(None if cancelled_by_loss else error)

    def _report_loss(self, error: BaseException | None) -> None:
        if not self.lost or isinstance(error, LeaseLost):
            return
        if error is None:
            raise self._loss()
        error.add_note(self._loss_message())

    def _warn_unreleased(self, fault: StoreUnavailable) -> None:
        self._end(_ABANDONED)
        logger.warning(
            "The lock %r could not be released, and is free when its TTL has run out: %s",
            self.name,
            fault,
            extra=self.log_extra(),
        )

    def __del__(self) -> None:
        self._lift_enforcement()
        if self._state is not _HELD or self._pid != _pid:
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
