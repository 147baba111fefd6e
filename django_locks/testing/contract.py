"""The contract suite, which every lock store passes.

Mix it into a test case of your choice, and give it a way to make a store::

    class MyStoreTests(StoreContract, AsyncStoreContract, SimpleTestCase):
        def make_store(self):
            return MyStore("default", "tests")

It takes about ten seconds, since it lets real leases expire.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, timedelta

from django_locks.stores.base import BROKEN
from django_locks.values import HOLDER_LENGTH, LONGEST, NAME_LENGTH, PREFIX_LENGTH, new_owner

from .case import StoreCase

STRANGE_NAMES = [
    "plain",
    "with spaces inside",
    "a/b:c?d#e&f=g",
    "..",
    "<script>alert(1)</script>",
    "quote\"quote'quote`",
    "back\\slash",
    "%s %(x)s %% {0} {name} {}",
    "{x}b",
    "c{",
    "}d{",
    "*?[a-z]",
    "semi;colon -- comment",
    "Grüße, 世界, мир, 🔒🔑",
    "\u202eright to left\u202c.",
]


class StoreContract(StoreCase):
    """The contract of `django_locks.stores.base`, as tests."""

    # Granting

    def test_free_name_is_granted_with_a_positive_fence_that_json_can_carry(self) -> None:
        fence = self.granted()
        self.assertIsInstance(fence, int)
        self.assertGreater(fence, 0)
        self.assertLess(fence, 2**53)

    def test_held_name_is_refused_to_others(self) -> None:
        self.granted()
        self.assertIsNone(self.acquire(owner=new_owner(), store=self.other))
        self.assertIsNone(self.acquire(owner=new_owner()))

    def test_refusal_changes_nothing(self) -> None:
        self.granted(ttl=20)
        before = self.other.get(self.name)
        self.assertIsNone(self.acquire(owner=new_owner(), ttl=60, store=self.other, holder="somebody else"))
        after = self.other.get(self.name)
        assert before is not None and after is not None
        self.assertEqual((before.owner, before.holder, before.fence), (after.owner, after.holder, after.fence))
        self.assertEqual(before.acquired_at, after.acquired_at)
        self.assertLessEqual(after.remaining, before.remaining)

    def test_same_owner_asking_again_gets_the_same_fence_and_a_whole_ttl(self) -> None:
        fence = self.granted(ttl=2)
        self.assertEqual(self.granted(ttl=20), fence)
        self.assertGreater(self.remaining(), 20 - self.slack)

    def test_other_names_are_not_affected(self) -> None:
        self.granted()
        self.granted(name=f"{self.name}:2", owner=new_owner(), store=self.other)
        self.assertTrue(self.store.release(self.name, self.owner))
        self.assertGreater(self.remaining(f"{self.name}:2"), 0)

    def test_race_of_threads_has_one_winner_a_round(self) -> None:
        for turn in range(10):
            name = f"{self.name}:{turn}"
            fences = self.race(lambda name=name: self.acquire(name, new_owner()), threads=8)  # type: ignore[misc]
            self.assertEqual(len([fence for fence in fences if fence is not None]), 1, fences)

    def race(self, call: Callable[[], int | None], threads: int) -> list[int | None]:
        results: list[int | None] = []
        errors: list[BaseException] = []
        barrier = threading.Barrier(threads)

        def run() -> None:
            try:
                barrier.wait(10)
                results.append(call())
            except BaseException as error:  # a thread's error must fail the test
                errors.append(error)
            finally:
                self.store.leave_thread()

        running = [threading.Thread(target=run) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        self.assertEqual(errors, [])
        return results

    # Ending

    def test_release_frees_the_name_at_once(self) -> None:
        self.granted()
        self.assertTrue(self.store.release(self.name, self.owner))
        self.assertIsNone(self.other.get(self.name))
        self.granted(owner=new_owner(), store=self.other)

    def test_release_by_a_stranger_is_refused_and_changes_nothing(self) -> None:
        self.granted()
        self.assertFalse(self.other.release(self.name, new_owner()))
        self.assertFalse(self.other.release(self.name, ""))
        self.assertGreater(self.remaining(), 30 - self.slack - 1)

    def test_second_release_is_false(self) -> None:
        self.granted()
        self.assertTrue(self.store.release(self.name, self.owner))
        self.assertFalse(self.store.release(self.name, self.owner))

    def test_release_of_an_unknown_name_is_false(self) -> None:
        self.assertFalse(self.store.release(self.name, self.owner))

    def test_late_release_does_not_touch_the_next_holder(self) -> None:
        self.granted(ttl=0.3)
        successor = new_owner()
        self.eventually(lambda: self.acquire(owner=successor, store=self.other), within=2)
        self.assertFalse(self.store.release(self.name, self.owner))
        self.assertFalse(self.store.release(self.name, self.owner, hold_for=60))
        lease = self.other.get(self.name)
        self.assertEqual(lease and lease.owner, successor)

    def test_lease_ends_with_its_ttl_and_not_before(self) -> None:
        before = time.monotonic()
        self.granted(ttl=0.5)
        self.eventually(lambda: self.acquire(owner=new_owner(), store=self.other), within=0.5 + 2)
        self.assertGreaterEqual(time.monotonic() - before, 0.5 - self.resolution)

    def test_expired_lease_is_as_good_as_absent(self) -> None:
        self.granted(ttl=0.2)
        self.eventually(lambda: self.other.get(self.name) is None, within=2)
        self.assertNotIn(self.name, [lease.name for lease in self.store.leases(self.name)])
        self.assertFalse(self.store.release(self.name, self.owner))
        self.assertEqual(self.store.renew([(self.name, self.owner, 30.0)]), set())
        self.assertIsNone(self.other.get(self.name))

    def test_fraction_of_a_second_is_kept(self) -> None:
        self.granted(ttl=1.2345)
        self.assertLessEqual(self.remaining(), 1.2345 + self.resolution)
        self.assertGreater(self.remaining(), 1.2345 - self.slack)

    def test_tiny_ttl_ends_and_is_no_error(self) -> None:
        self.granted(ttl=1e-6)
        self.eventually(lambda: self.acquire(owner=new_owner()), within=1)

    def test_longest_ttl_is_stored(self) -> None:
        self.granted(ttl=LONGEST)
        self.assertGreater(self.remaining(), LONGEST - 60)

    # Keeping a name taken after its release

    def test_release_with_hold_keeps_the_name_taken_without_an_owner(self) -> None:
        self.granted(ttl=60)
        self.assertTrue(self.store.release(self.name, self.owner, hold_for=5))
        self.assertIsNone(self.acquire(owner=new_owner(), store=self.other))
        self.assertIsNone(self.acquire())
        lease = self.other.get(self.name)
        assert lease is not None
        self.assertEqual((lease.owner, lease.holder), ("", "me"))
        self.assertLessEqual(lease.remaining, 5 + self.resolution)
        self.assertIn(self.name, [lease.name for lease in self.store.leases(self.name)])

    def test_former_owner_of_a_kept_name_neither_renews_nor_releases(self) -> None:
        self.granted()
        self.store.release(self.name, self.owner, hold_for=5)
        self.assertEqual(self.store.renew([(self.name, self.owner, 30.0)]), set())
        self.assertFalse(self.store.release(self.name, self.owner))
        self.assertLessEqual(self.remaining(), 5 + self.resolution)

    def test_kept_name_is_free_when_its_time_is_over(self) -> None:
        first = self.granted()
        self.store.release(self.name, self.owner, hold_for=0.3)
        self.eventually(lambda: self.acquire(owner=new_owner(), store=self.other), within=2)
        lease = self.store.get(self.name)
        self.assertTrue(lease and lease.fence > first)

    def test_kept_name_can_be_freed_by_force(self) -> None:
        self.granted()
        self.store.release(self.name, self.owner, hold_for=60)
        self.assertTrue(self.other.release(self.name, "", outcome=BROKEN))
        self.granted(owner=new_owner())

    # Renewing

    def test_renewal_counts_the_ttl_from_now(self) -> None:
        fence = self.granted(ttl=2)
        self.assertEqual(self.store.renew([(self.name, self.owner, 40.0)]), {self.name})
        lease = self.other.get(self.name)
        assert lease is not None
        self.assertGreater(lease.remaining, 40 - self.slack)
        self.assertEqual((lease.fence, lease.owner, lease.holder), (fence, self.owner, "me"))

    def test_renewal_may_shorten(self) -> None:
        self.granted(ttl=60)
        self.store.renew([(self.name, self.owner, 3.0)])
        self.assertLessEqual(self.remaining(), 3 + self.resolution)

    def test_renewal_by_a_stranger_is_refused_and_changes_nothing(self) -> None:
        self.granted(ttl=3)
        self.assertEqual(self.other.renew([(self.name, new_owner(), 60.0)]), set())
        self.assertLessEqual(self.remaining(), 3 + self.resolution)

    def test_renewal_of_many_tells_which_are_still_ours(self) -> None:
        ours, theirs, free = (f"{self.name}:{kind}" for kind in ("ours", "theirs", "free"))
        stranger = new_owner()
        self.granted(ours, ttl=3)
        self.granted(theirs, owner=stranger, ttl=3)
        claims = [(ours, self.owner, 30.0), (theirs, self.owner, 40.0), (free, self.owner, 30.0)]
        self.assertEqual(self.store.renew(claims), {ours})
        self.assertGreater(self.remaining(ours), 30 - self.slack)
        self.assertLessEqual(self.remaining(theirs), 3 + self.resolution)
        self.assertEqual(self.remaining(free), 0)

    def test_renewal_of_none_is_none(self) -> None:
        self.assertEqual(self.store.renew([]), set())

    def test_renewal_of_a_thousand(self) -> None:
        names = [f"{self.name}:{number}" for number in range(1000)]
        for name in names:
            self.granted(name, ttl=60)
        self.store.release(names[500], self.owner)
        claims = [(name, self.owner, 90.0 + number % 2) for number, name in enumerate(names)]
        self.assertEqual(self.store.renew(claims), set(names) - {names[500]})
        self.assertGreater(self.remaining(names[999]), 90)

    # Fences

    def test_fence_rises_with_each_grant_however_the_one_before_ended(self) -> None:
        fences = [self.granted()]
        self.store.release(self.name, self.owner)
        fences.append(self.granted())
        self.store.release(self.name, self.owner, outcome=BROKEN)
        fences.append(self.granted(ttl=0.2))
        self.eventually(lambda: self.other.get(self.name) is None, within=2)
        fences.append(self.granted(owner=new_owner(), store=self.other, ttl=0.2))
        self.eventually(lambda: self.other.get(self.name) is None, within=2)
        self.store.prune(0)
        fences.append(self.granted())
        self.assertEqual(fences, sorted(set(fences)))

    # Looking

    def test_lookup_of_a_free_name_is_none(self) -> None:
        self.assertIsNone(self.store.get(self.name))

    def test_lookup_tells_who_holds_and_until_when(self) -> None:
        fence = self.granted(ttl=20)
        lease = self.other.get(self.name)
        assert lease is not None
        self.assertEqual((lease.name, lease.owner, lease.holder, lease.fence), (self.name, self.owner, "me", fence))
        self.assertLessEqual(lease.remaining, 20 + self.resolution)
        self.assertGreater(lease.remaining, 20 - self.slack)
        self.assertEqual((lease.acquired_at.tzinfo, lease.expires_at.tzinfo), (UTC, UTC))
        length = lease.expires_at - lease.acquired_at
        self.assertLess(abs(length - timedelta(seconds=20)), timedelta(seconds=self.slack))

    def test_listing_gives_live_leases_by_name_under_a_literal_prefix(self) -> None:
        names = [f"{self.name}:{tail}" for tail in ("a%", "a_", "ab", "b*", "B", "ä")]
        for name in names:
            self.granted(name)
        self.granted(f"{self.name}:released")
        self.store.release(f"{self.name}:released", self.owner)
        self.assertEqual([lease.name for lease in self.other.leases(f"{self.name}:")], sorted(names))
        for tail, expected in (("a%", 1), ("a_", 1), ("a", 3), ("*", 0), ("b", 1), ("?", 0), ("", 6)):
            self.assertEqual(len(list(self.other.leases(f"{self.name}:{tail}"))), expected, tail)
        self.assertIn(self.name + ":ab", [lease.name for lease in self.other.leases()])

    # Text

    def test_any_clean_name_is_stored_as_it_is(self) -> None:
        names = [f"{self.name}:{tail}" for tail in STRANGE_NAMES]
        for name in names:
            self.granted(name)
            self.assertIsNone(self.acquire(name, new_owner(), store=self.other), name)
        self.assertEqual({lease.name for lease in self.other.leases(f"{self.name}:")}, set(names))
        self.assertEqual(self.store.renew([(name, self.owner, 60.0) for name in names]), set(names))
        for name in names:
            self.assertTrue(self.store.release(name, self.owner), name)

    def test_names_that_differ_by_case_accent_or_width_are_different(self) -> None:
        for tail in ("job", "JOB", "jöb", "job.", "ｊｏｂ", "jo b", "straße", "strasse"):
            self.granted(f"{self.name}:{tail}", owner=new_owner())

    def test_longest_name_is_stored_whole(self) -> None:
        length = PREFIX_LENGTH + 1 + NAME_LENGTH
        for character in ("n", "ü", "🔒"):
            name = self.name + character * (length - len(self.name))
            self.granted(name)
            self.granted(name[:-1] + "x", owner=new_owner())
            self.assertEqual([lease.name for lease in self.other.leases(name)], [name])
            self.assertTrue(self.store.release(name, self.owner))

    def test_holder_is_any_text(self) -> None:
        for number, holder in enumerate(["", "a b  c", 'x:1:"><script>', "🔒" * HOLDER_LENGTH, "%s {0} ' \\"]):
            name = f"{self.name}:{number}"
            self.acquire(name, holder=holder)
            lease = self.other.get(name)
            self.assertEqual(lease and lease.holder, holder)

    # Upkeep

    def test_prune_leaves_what_is_held_or_kept(self) -> None:
        kept = f"{self.name}:kept"
        self.granted()
        self.granted(kept)
        self.store.release(kept, self.owner, hold_for=60)
        self.assertIsInstance(self.store.prune(0), int)
        self.assertGreater(self.remaining(), 0)
        self.assertGreater(self.remaining(kept), 0)

    def test_closed_store_can_be_used_again(self) -> None:
        self.granted()
        self.store.close()
        self.store.close()
        self.assertTrue(self.store.release(self.name, self.owner))

    def test_watch_returns_by_its_timeout(self) -> None:
        self.granted()
        with self.store.watch(self.name) as watch:
            for timeout in (0.0, 0.05, 0.2):
                before = time.monotonic()
                watch.wait(timeout)
                self.assertLess(time.monotonic() - before, timeout + self.slack)

    def test_watch_returns_soon_after_a_release(self) -> None:
        self.granted()
        with self.store.watch(self.name) as watch:
            watch.wait(0.01)
            self.other.release(self.name, self.owner)
            before = time.monotonic()
            while self.acquire(owner=new_owner()) is None:
                watch.wait(10)
            self.assertLess(time.monotonic() - before, 1 + self.slack)

    def test_check_messages_are_of_a_sound_store_none(self) -> None:
        self.assertEqual(self.store.check(), [])
