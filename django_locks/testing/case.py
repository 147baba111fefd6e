"""What both contract suites, of the verbs and of their asynchronous twins, begin with."""

from __future__ import annotations

import time
import unittest
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_locks.stores.base import BaseStore
from django_locks.values import new_owner

if TYPE_CHECKING:
    _Base = unittest.TestCase
else:
    _Base = object


class StoreCase(_Base):
    """Two store objects that share their leases, and helpers. Override `make_store`; durations fit a slow machine."""

    #: How far a store's clock may round a duration, in seconds.
    resolution = 0.002
    #: How long a step may take on a busy machine before a test blames the store, in seconds.
    slack = 0.5

    store: BaseStore
    other: BaseStore

    def make_store(self) -> BaseStore:
        """Return a new store object; all of them share their leases, as those of several processes do."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.store = self.make_store()
        self.other = self.make_store()
        self.addCleanup(self.store.close)
        self.addCleanup(self.other.close)
        self.name = f"contract:{uuid.uuid4().hex}"
        self.owner = new_owner()

    def acquire(
        self, name: str = "", owner: str = "", ttl: float = 30, store: BaseStore | None = None, holder: str = "me"
    ) -> int | None:
        return (store or self.store).acquire(name or self.name, owner or self.owner, ttl, holder)

    def granted(self, name: str = "", owner: str = "", ttl: float = 30, store: BaseStore | None = None) -> int:
        fence = self.acquire(name, owner, ttl, store)
        assert fence is not None, "a free lock was refused"
        return fence

    def remaining(self, name: str = "") -> float:
        lease = self.other.get(name or self.name)
        return 0.0 if lease is None else lease.remaining

    def eventually(self, condition: Callable[[], object], within: float) -> None:
        deadline = time.monotonic() + within
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"not within {within} s")
            time.sleep(0.01)
