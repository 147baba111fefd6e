"""For tests: the contract of a store's verbs for asyncio, which every lock store passes as well.

Mix it in beside `django_locks.testing.StoreContract`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from django_locks.stores.base import BaseStore, Claim
from django_locks.values import LeaseInfo, new_owner

from .case import StoreCase

T = TypeVar("T")


class AsyncStoreContract(StoreCase):
    """Each verb does what its synchronous twin does, on the same leases, in whichever event loop it is asked."""

    def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, run in an event loop of its own."""
        return asyncio.run(coroutine)

    def aacquire(self, owner: str = "", ttl: float = 30, store: BaseStore | None = None) -> int | None:
        return self.run_async((store or self.store).aacquire(self.name, owner or self.owner, ttl, "me"))

    def arenew(self, claims: Sequence[Claim]) -> set[str]:
        return self.run_async(self.store.arenew(claims))

    def arelease(self, owner: str, hold_for: float = 0) -> bool:
        return self.run_async(self.store.arelease(self.name, owner, hold_for))

    def aget(self) -> LeaseInfo | None:
        return self.run_async(self.store.aget(self.name))

    def aleases(self, prefix: str) -> list[LeaseInfo]:
        async def listed() -> list[LeaseInfo]:
            return [lease async for lease in self.store.aleases(prefix)]

        return self.run_async(listed())

    def test_lease_taken_async_is_seen_sync(self) -> None:
        fence = self.aacquire(ttl=20)
        lease = self.other.get(self.name)
        assert lease is not None
        self.assertEqual((lease.owner, lease.holder, lease.fence), (self.owner, "me", fence))
        self.assertGreater(lease.remaining, 20 - self.slack)
        self.assertIsNone(self.acquire(owner=new_owner(), store=self.other))
        self.assertTrue(self.other.release(self.name, self.owner))

    def test_lease_taken_sync_is_seen_async(self) -> None:
        fence = self.granted()
        lease = self.aget()
        assert lease is not None
        self.assertEqual((lease.owner, lease.holder, lease.fence), (self.owner, "me", fence))
        self.assertIsNone(self.aacquire(owner=new_owner()))
        self.assertIsNone(self.aacquire(owner=new_owner(), store=self.other))
        self.assertEqual(self.aacquire(), fence)
        self.assertTrue(self.arelease(self.owner))
        self.assertIsNone(self.other.get(self.name))

    def test_async_grant_to_the_same_owner_again_is_the_same_lease(self) -> None:
        fence = self.aacquire(ttl=2)
        self.assertEqual(self.aacquire(ttl=20), fence)
        self.assertGreater(self.remaining(), 20 - self.slack)

    def test_async_lookup_of_a_free_name_is_none(self) -> None:
        self.assertIsNone(self.aget())

    def test_async_fence_rises_over_sync_and_async_grants(self) -> None:
        fences = []
        for take in (self.granted, self.aacquire, self.granted, self.aacquire):
            fences.append(take())
            self.assertTrue(self.arelease(self.owner))
        self.assertEqual(fences, sorted(set(fences), key=lambda fence: fence or 0))

    def test_async_release_of_a_strangers_lease_is_refused(self) -> None:
        self.granted(owner=new_owner())
        self.assertFalse(self.arelease(self.owner))
        self.assertGreater(self.remaining(), 0)

    def test_async_release_a_second_time_is_refused(self) -> None:
        self.granted()
        self.assertTrue(self.arelease(self.owner))
        self.assertFalse(self.arelease(self.owner))

    def test_async_release_that_holds_keeps_the_name_taken_without_an_owner(self) -> None:
        self.granted(ttl=60)
        self.assertTrue(self.arelease(self.owner, hold_for=5))
        self.assertIsNone(self.acquire(owner=new_owner()))
        self.assertIsNone(self.acquire())
        self.assertFalse(self.arelease(self.owner))
        self.assertGreater(self.remaining(), 0)
        self.assertLessEqual(self.remaining(), 5 + self.resolution)

    def test_async_renewal_of_many_tells_which_are_still_ours(self) -> None:
        ours, theirs, free = (f"{self.name}:{kind}" for kind in ("ours", "theirs", "free"))
        self.granted(ours, ttl=3)
        self.granted(theirs, owner=new_owner(), ttl=3)
        self.assertEqual(self.arenew([(name, self.owner, 30.0) for name in (ours, theirs, free)]), {ours})
        self.assertGreater(self.remaining(ours), 30 - self.slack)
        self.assertLessEqual(self.remaining(theirs), 3 + self.resolution)

    def test_async_renewal_of_none_and_of_hundreds(self) -> None:
        names = [f"{self.name}:{number}" for number in range(200)]
        for name in names:
            self.granted(name)
        self.assertEqual(self.arenew([]), set())
        self.assertEqual(self.arenew([(name, self.owner, 90.0) for name in names]), set(names))
        self.assertGreater(self.remaining(names[-1]), 60)

    def test_async_listing_gives_live_leases_by_name(self) -> None:
        names = [f"{self.name}:{tail}" for tail in ("a%", "ab", "b*", "B", "ä")]
        for name in names:
            self.granted(name)
        self.granted(f"{self.name}:released")
        self.store.release(f"{self.name}:released", self.owner)
        self.assertEqual([lease.name for lease in self.aleases(f"{self.name}:")], sorted(names))
        self.assertEqual(len(self.aleases(f"{self.name}:a")), 2)
        self.assertEqual(self.aleases(f"{self.name}:*"), [])

    def test_race_of_tasks_has_one_winner(self) -> None:
        async def race() -> list[int | None]:
            stores = [self.store, self.other] * 8
            return await asyncio.gather(*(store.aacquire(self.name, new_owner(), 30, "me") for store in stores))

        fences = self.run_async(race())
        self.assertEqual(len([fence for fence in fences if fence is not None]), 1, fences)

    def test_expired_lease_is_granted_async_to_another(self) -> None:
        async def wait_for_it() -> int:
            deadline = time.monotonic() + 2 + self.slack
            while (fence := await self.other.aacquire(self.name, new_owner(), 30, "me")) is None:
                self.assertLess(time.monotonic(), deadline, "an expired lease was not granted")
                await asyncio.sleep(0.01)
            return fence

        first = self.aacquire(ttl=0.3)
        self.assertGreater(self.run_async(wait_for_it()), first or 0)

    def test_store_closed_amid_a_loop_can_be_used_again(self) -> None:
        async def close_and_release() -> bool:
            fence = await self.store.aacquire(self.name, self.owner, 30, "me")
            self.store.close()
            self.assertEqual(await self.store.aacquire(self.name, self.owner, 30, "me"), fence)
            self.store.close()
            return await self.store.arelease(self.name, self.owner)

        self.assertTrue(self.run_async(close_and_release()))
