"""A lease as its holder keeps it: its clock, its state, its renewal and its loss."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

from . import clock, signals
from .exceptions import LeaseLost, StoreUnavailable
from .fencing import Enforcement
from .grants import Grant, Taker, Terms
from .logs import log_extra
from .renewal import keeper
from .stores.base import BaseStore, Claim
from .tasks import CancelOnLoss
from .values import describe_duration, describe_lease

if TYPE_CHECKING:
    from .guard import LockGuard

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


class State(Enum):
    HELD = "held"
    RELEASING = "sent back"  # its release is on its way: what a renewal hears meanwhile is no loss
    RELEASED = "released"
    DETACHED = "detached"
    ABANDONED = "abandoned"  # its block was left while the store was unreachable: not renewed, but may be released
    LOST = "lost"


# Python 3.11 takes ten times as long for a member of an enumeration as for a global.
HELD, RELEASING, GIVEN_BACK, ABANDONED, LOST = (
    State.HELD,
    State.RELEASING,
    State.RELEASED,
    State.ABANDONED,
    State.LOST,
)


class Holding:
    """What a `LockGuard` is to the keeper, which renews it and takes note of its loss."""

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
        "_last",
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
        self._state = ABANDONED  # unless the keeper can take it on
        self._enforced: tuple[Enforcement, ...] = ()  # to be lifted at its end
        self._error: type[BaseException] | None = None  # in which its block has ended
        self._grant = grant
        self._terms = terms
        self._granted = clock.now() - age
        self._acquired = clock.epoch() - age
        self._pid = _pid
        self._why_lost = ""
        self._fault = ""  # text: an exception's frames know the whole batch, and would keep dropped guards alive
        self._body: CancelOnLoss | None = None
        self.in_flight = math.inf
        self._confined = confined
        # As the lease's own end, it counts from before the request was sent.
        self._last = math.inf if terms.max_hold is None else grant.sent - age + terms.max_hold
        self._count(grant.sent, self._capped(terms.ttl, grant.sent))
        if not confined:
            keeper.add(self)
        self._state = HELD
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
        if self.lost or self._state is not HELD:
            return 0.0
        return max(0.0, self._expires - (self._sent if self._confined else clock.now()))

    @property
    def lost(self) -> bool:
        """Is the lease over although it was not given back? No I/O. In a forked child always true."""
        if self._state is HELD:
            if self._pid != _pid:
                self._why_lost = "belongs to the parent of this process: take it anew after a fork"
                self._end(LOST)
            elif clock.now() >= self.deadline:
                self.expire()
        return self._state is LOST

    @property
    def is_inherited(self) -> bool:
        """Does it belong to a process that this one was forked from?"""
        return self._pid != _pid

    @property
    def released(self) -> bool:
        """Has the lease been given back?"""
        return self._state is GIVEN_BACK

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is still ours. No I/O."""
        if self.lost or self._state is not HELD:
            raise self._loss()

    def __repr__(self) -> str:
        state = f"{self.remaining:.1f} s remaining" if self._state is HELD else self._state.value
        return f"<LockGuard {self.name!r} of {self.alias!r}, fence {self.fence}, {state}>"

    # Keeping it

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
            if self._state is HELD and clock.now() < self.deadline and sent >= self._sent:
                self._fault = ""
                self._count(sent, ttl)

    def refused(self) -> None:
        """Take note that the store says: not yours."""
        self._lose(NOT_OURS)

    def failed(self, error: StoreUnavailable, again: float) -> None:
        """Take note that the store could not be asked, and is asked again soon: that is no loss yet."""
        if self._state is not HELD:
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
        elif self._terms.max_hold is not None and self.deadline >= self._last - 0.001:
            self._lose(f"was held for as long as max_hold allows, {describe_duration(self._terms.max_hold)}")
        elif self._terms.renew:
            self._lose(f"was not renewed in time for its TTL of {describe_duration(self.ttl)}")
        else:
            self._lose(f"has run out after its TTL of {describe_duration(self.ttl)}, without renewal")

    def _count(self, sent: float, ttl: float) -> None:
        self._sent = sent
        self._expires = sent + ttl
        renews = self._terms.renew and self._expires < self._last - 0.001
        self.window = ttl / 6
        if self._confined:
            self.due = self.deadline = math.inf
            return
        self.due = sent + ttl / 3 if renews else math.inf
        self.deadline = sent + ttl * 2 / 3 if renews else self._expires

    def _capped(self, ttl: float, now: float) -> float:
        return ttl if self._last == math.inf else min(ttl, max(self._last - now, 0.001))

    @contextmanager
    def stand_still(self) -> Iterator[Callable[[float], None]]:
        """Neither renew nor lose the lease from its first renewal in the block on, until the block has ended.

        Enters with what to call after each renewal, with the moment when it was sent. A block that fails undoes them.
        """
        confined, sent = self._confined, None

        def renewed(when: float) -> None:
            nonlocal sent
            self._confined, sent = True, when
            self._count(self._sent, self._expires - self._sent)

        try:
            yield renewed
        except BaseException:
            sent = None
            raise
        finally:
            self._confined = confined
            ended = self._sent, self._expires - self._sent
            self._count(*(ended if sent is None else (sent, self._capped(self.ttl, sent))))
            keeper.look(min(self.due, self.deadline))

    def _has_stood_still(self) -> bool:
        """Has a lease whose time stands still for its holder run out for its store?"""
        return self._confined and clock.now() >= self._expires

    # Its end

    def release(self) -> bool:
        """Give the lock back, as the keeper does when the interpreter ends."""
        raise NotImplementedError

    def _begin_release(self) -> State | None:
        """Return the state to go back to if the release fails; None: there is nothing to release."""
        with _turn:
            before = self._state
            if self.lost if before is HELD else before is not ABANDONED:
                return None
            self._state, self.due = RELEASING, math.inf
        return before

    def _end(self, state: State, since: State = HELD) -> bool:
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
        if leaving and key in leaving and leaving[key].guard is self:
            del leaving[key]
        if held_by.get(key, _NOBODY)[0] == grant.owner:
            del held_by[key]

    # Losing it

    def lose(self, why: str) -> NoReturn:
        """Take note that the lease is lost, and raise `LeaseLost`."""
        self._lose(why)
        raise self._loss()

    def _lose(self, why: str, since: State = HELD) -> None:
        if not self._end(LOST, since):
            return
        self._why_lost = why
        body = self._body  # read once: the task may be leaving it
        if body is not None:
            body.fire()
        keeper.announce(self._report_why)
        keeper.announce(self._signal_loss)
        if self._terms.on_lost is not None:
            keeper.announce(partial(self._terms.on_lost, self._as_guard))

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
        if self._confined:  # this thread, the announcer's, sees nothing of it, and would only stand in the way
            return NOT_OURS
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
        return LeaseLost(self._loss_message(), name=self.name, alias=self.alias, guard=self._as_guard)

    def _loss_message(self) -> str:
        held = describe_duration(self._held())
        why = self._why_lost or f"has been {self._state.value}"
        return (
            f"The lease of {self.name!r} (store {self.alias!r}, holder {self.holder}, fence {self.fence}, taken {held} "
            f"ago) {why}. Somebody else may hold it: stop, and write nothing in its name."
        )

    @property
    def _as_guard(self) -> LockGuard:
        return cast("LockGuard", self)

    def _held(self) -> float:
        return clock.now() - self._granted

    def log_extra(self) -> dict[str, object]:
        """Return what a log record about this guard carries as its ``extra``."""
        return log_extra(self.name, self.alias, holder=self.holder, fence=self.fence, template=self.template)
