"""A model of the store contract, which hypothesis plays against a store: by several owners, in any order.

The model counts each lease's end by this process' clock, from before its request was sent and from after the answer
came: between the two moments a lease may be live or over, and the store's answer decides which.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from django_locks.stores.base import BROKEN, RELEASED, RESUMED, BaseStore
from django_locks.values import PAUSED, LeaseInfo

TICK = 0.005  # seconds: what clocks may differ by, and how coarse a store's may be
SHORT, LONG = 0.03, 60.0

NAMES = st.integers(0, 2)
OWNERS = st.sampled_from(["a" * 32, "b" * 32, "c" * 32, PAUSED])
TTLS = st.sampled_from([SHORT, LONG, LONG])
WAYS = st.sampled_from(["store", "other", "async"])
CLAIMS = st.lists(st.tuples(NAMES, OWNERS, TTLS), max_size=3, unique_by=lambda claim: claim[0])


@dataclass
class Held:
    """What is known of a lease. Moments are of `time.monotonic`."""

    owner: str
    fence: int
    holder: str
    first_end: float
    last_end: float

    def ends(self, sent: float, answered: float, ttl: float) -> None:
        self.first_end, self.last_end = sent + ttl - TICK, answered + ttl + TICK


class StoreMachine(RuleBasedStateMachine):
    """Give it a way to make stores that share their leases, and one that empties all of them."""

    make_store: Callable[[], BaseStore]
    flush_store: Callable[[], object]

    def __init__(self) -> None:
        super().__init__()
        self.stores = {"store": self.make_store(), "other": self.make_store()}
        self.loop = asyncio.Runner()
        self.prefix = f"model:{uuid.uuid4().hex}:"
        self.held: dict[int, Held] = {}
        self.highest: dict[int, int] = {}

    def teardown(self) -> None:
        for name in range(3):
            self.look(name, "store")
            self.stores["other"].release(self.name(name), self.held[name].owner if name in self.held else "")
        self.loop.close()
        for store in self.stores.values():
            store.close()

    # Asking

    def ask(self, way: str, verb: str, *arguments: Any) -> Any:
        if way == "async":
            return self.run(getattr(self.stores["store"], "a" + verb)(*arguments))
        return getattr(self.stores[way], verb)(*arguments)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(coroutine)

    def timed(self, way: str, verb: str, *arguments: Any) -> tuple[Any, float, float]:
        sent = time.monotonic()
        answer = self.ask(way, verb, *arguments)
        return answer, sent, time.monotonic()

    def name(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def live(self, name: int, sent: float, answered: float) -> bool | None:
        """Was the name taken between the two moments? None: it may have ended meanwhile."""
        held = self.held.get(name)
        if held is None or held.last_end < sent:
            self.held.pop(name, None)
            return False
        return True if answered < held.first_end else None

    def seen(self, live: bool | None, expected: bool, answer: bool, what: object) -> None:
        """Check a yes or no, which is unsure only where the lease may have ended meanwhile."""
        wanted = expected and live
        assert answer == wanted or (live is None and (expected or not answer)), what

    # Taking and keeping

    @rule(name=NAMES, owner=OWNERS, ttl=TTLS, way=WAYS)
    def acquire(self, name: int, owner: str, ttl: float, way: str) -> None:
        fence, sent, answered = self.timed(way, "acquire", self.name(name), owner, ttl, f"holder {owner[0]}")
        live, held = self.live(name, sent, answered), self.held.get(name)
        if fence is None:
            assert held is not None, "a free lock was refused"
            assert held.owner != owner, "a lock was refused to its own holder"
            return
        if held is not None and fence == held.fence:
            assert held.owner == owner, "one fence for two owners"
            assert live is not False
        else:
            assert live is not True, "a held lock was granted"
            assert self.highest.get(name, 0) < fence < 2**53, "the fence did not rise"
            self.highest[name] = fence
            held = self.held[name] = Held(owner, fence, f"holder {owner[0]}", 0, 0)
        held.ends(sent, answered, ttl)

    @rule(claims=CLAIMS, way=WAYS)
    def renew(self, claims: list[tuple[int, str, float]], way: str) -> None:
        wanted = [(self.name(name), owner, ttl) for name, owner, ttl in claims]
        ours, sent, answered = self.timed(way, "renew", wanted)
        for name, owner, ttl in claims:
            renewed = self.name(name) in ours
            live = self.live(name, sent, answered)
            mine = name in self.held and self.held[name].owner == owner
            self.seen(live, mine, renewed, "renewed")
            if renewed:
                self.held[name].ends(sent, answered, ttl)
        assert len(ours) <= len(claims)

    @rule(name=NAMES)
    def expire(self, name: int) -> None:
        """Let a short lease run out."""
        left = self.held[name].last_end - time.monotonic() if name in self.held else 0
        if 0 < left < 1:
            time.sleep(left + 0.001)
            assert self.look(name, "store") is None, "an expired lease is there"

    # Ending

    @rule(name=NAMES, owner=st.one_of(OWNERS, st.just("")), hold_for=st.sampled_from([0, 0, SHORT, LONG]), way=WAYS)
    def release(self, name: int, owner: str, hold_for: float, way: str) -> None:
        outcome = RESUMED if owner == PAUSED else RELEASED
        self.released(name, owner, hold_for, self.timed(way, "release", self.name(name), owner, hold_for, outcome))

    @rule(name=NAMES, way=WAYS)
    def force(self, name: int, way: str) -> None:
        """Break the lease of whoever holds it, as a person does."""
        lease = self.look(name, way)
        if lease is not None:
            self.released(name, lease.owner, 0, self.timed(way, "release", self.name(name), lease.owner, 0, BROKEN))

    def released(self, name: int, owner: str, hold_for: float, answer: tuple[bool, float, float]) -> None:
        done, sent, answered = answer
        live = self.live(name, sent, answered)
        self.seen(live, name in self.held and self.held[name].owner == owner, done, "released")
        if not done:
            return
        if hold_for:
            self.held[name].owner = ""
            self.held[name].ends(sent, answered, hold_for)
        else:
            del self.held[name]

    # Looking

    @rule(name=NAMES, way=WAYS)
    def get(self, name: int, way: str) -> None:
        self.look(name, way)

    def look(self, name: int, way: str) -> LeaseInfo | None:
        lease, sent, answered = self.timed(way, "get", self.name(name))
        live = self.live(name, sent, answered)
        self.seen(live, True, lease is not None, "looked up")
        if lease is not None:
            self.compare(lease, name, sent, answered)
        found: LeaseInfo | None = lease
        return found

    @rule(way=WAYS)
    def leases(self, way: str) -> None:
        sent = time.monotonic()
        found = self.run(self.listed()) if way == "async" else list(self.stores[way].leases(self.prefix))
        answered = time.monotonic()
        assert [lease.name for lease in found] == sorted({lease.name for lease in found})
        by_name = {lease.name: lease for lease in found}
        for name in range(3):
            live = self.live(name, sent, answered)
            self.seen(live, True, self.name(name) in by_name, "listed")
            if self.name(name) in by_name:
                self.compare(by_name.pop(self.name(name)), name, sent, answered)
        assert not by_name

    async def listed(self) -> list[LeaseInfo]:
        return [lease async for lease in self.stores["store"].aleases(self.prefix)]

    def compare(self, lease: LeaseInfo, name: int, sent: float, answered: float) -> None:
        held = self.held[name]
        expected = (self.name(name), held.owner, held.holder, held.fence)
        assert (lease.name, lease.owner, lease.holder, lease.fence) == expected
        assert held.first_end - answered - TICK <= lease.remaining <= held.last_end - sent + TICK
        assert lease.acquired_at < lease.expires_at

    # Upkeep

    @rule(older_than=st.sampled_from([0.0, SHORT, LONG]), way=st.sampled_from(["store", "other"]))
    def prune(self, older_than: float, way: str) -> None:
        assert self.stores[way].count_free(older_than) >= 0
        assert self.stores[way].prune(older_than) >= 0

    @rule()
    def flush(self) -> None:
        """Let the store forget everything, as an emptied Redis does, and rows deleted by hand."""
        type(self).flush_store()
        self.held.clear()
        time.sleep(0.002)  # a first fence is the store's clock, and that of SQLite stands still for a millisecond

    @rule(way=st.sampled_from(["store", "other"]))
    def close(self, way: str) -> None:
        self.stores[way].close()
