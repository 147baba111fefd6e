"""Tests as users write them, run by `tests.test_testcases` in processes of their own, on each database."""

from __future__ import annotations

import os
import threading
import time
from typing import Any
from urllib.request import urlopen

from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import LiveServerTestCase, TestCase, TransactionTestCase, override_settings

from django_locks import SKIPPED, AlreadyHeld, LeaseLost, locks
from tests.inner.code import async_job, fenced_job, job

IN_MEMORY = os.environ["DATABASE_URL"] == "sqlite://"


class LockedCode:
    """What must work in every kind of test case."""

    # Where nobody could renew, the lease is ours for ever; where somebody does, let the first renewal be over.
    ttl, longer = (0.2, 0.3) if IN_MEMORY else (2.0, 0.9)

    def setUp(self: Any) -> None:
        self.assertEqual(list(locks.leases()), [])
        self.assertEqual(Group.objects.count(), 0)

    def test_block(self: Any) -> None:
        with locks.lock("job") as guard:
            Group.objects.create(name="a")
            self.assertEqual(locks.get("job").fence, guard.fence)
            self.assertIsNone(locks.try_acquire("job"))
            with self.assertRaises(AlreadyHeld):
                locks.acquire("job")
        self.assertIsNone(locks.get("job"))
        with locks.lock("job") as again:
            self.assertGreater(again.fence, guard.fence)

    def test_decorated_function(self: Any) -> None:
        self.assertEqual(job("a"), "a")
        with locks.lock("job"):
            self.assertIs(job("b"), SKIPPED)
        self.assertEqual(job("c"), "c")
        self.assertEqual(Group.objects.count(), 2)

    def test_fenced_function(self: Any) -> None:
        fenced_job("a")
        self.assertEqual(Group.objects.get().name, "a")
        self.assertIsNone(locks.get("job"))

    def test_lease_is_kept_for_longer_than_its_ttl(self: Any) -> None:
        with locks.lock("job", ttl=self.ttl) as guard:
            time.sleep(self.longer)
            guard.check()
            Group.objects.create(name="a")

    def test_fenced_transaction_may_last_longer_than_the_ttl(self: Any) -> None:
        with locks.lock("job", ttl=self.ttl) as guard, guard.atomic():
            Group.objects.create(name="a")
            time.sleep(self.longer)

    def test_error_of_the_body(self: Any) -> None:
        with self.assertRaises(ZeroDivisionError), locks.lock("job"):
            Group.objects.create(name="a")
            raise ZeroDivisionError
        self.assertIsNone(locks.get("job"))

    def test_lock_around_a_transaction(self: Any) -> None:
        with locks.lock("job"), transaction.atomic():
            Group.objects.create(name="a")
        with locks.lock("job"), self.assertRaises(ZeroDivisionError), transaction.atomic():
            Group.objects.create(name="b")
            raise ZeroDivisionError
        self.assertIsNone(locks.get("job"))
        self.assertEqual(Group.objects.count(), 1)

    def test_broken_lease(self: Any) -> None:
        with self.assertRaises(LeaseLost), locks.lock("job") as guard:
            self.assertTrue(locks.force_release("job"))
            guard.extend()

    async def test_async_block(self: Any) -> None:
        async with locks.lock("job") as guard:
            await Group.objects.acreate(name="a")
            self.assertEqual((await locks.aget("job")).fence, guard.fence)
            self.assertIsNone(await locks.atry_acquire("job"))
        self.assertIsNone(await locks.aget("job"))

    async def test_async_decorated_function(self: Any) -> None:
        self.assertEqual(await async_job("a"), "a")
        async with locks.lock("job", enforce=True):
            self.assertIs(await async_job("b"), SKIPPED)
            self.assertEqual(await Group.objects.acount(), 1)

    async def test_async_lease_is_kept_for_longer_than_its_ttl(self: Any) -> None:
        async with locks.lock("job", ttl=self.ttl) as guard:
            time.sleep(self.longer)
            guard.check()


class InTestCase(LockedCode, TestCase):
    ttl, longer = 0.2, 0.3

    def test_lock_inside_a_transaction(self) -> None:
        with transaction.atomic():
            with locks.lock("job"):
                Group.objects.create(name="a")
            self.assertIsNone(locks.get("job"))  # at once: no commit will come

    def test_callbacks_may_take_the_lock(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            with locks.lock("job"):
                transaction.on_commit(lambda: job("a"))
        self.assertEqual(Group.objects.count(), 1)

    def test_what_is_left_taken_is_forgotten_1(self) -> None:
        left.append(locks.acquire("job", ttl=0.1))

    test_what_is_left_taken_is_forgotten_2 = test_what_is_left_taken_is_forgotten_1

    @classmethod
    def setUpTestData(cls) -> None:
        with locks.lock("data"):
            pass


left: list[Any] = []


class InTransactionTestCase(LockedCode, TransactionTestCase):
    def test_lock_inside_a_transaction(self) -> None:
        if connection.vendor == "sqlite":
            self.skipTest("one writer")
        with transaction.atomic():
            with locks.lock("job"):
                Group.objects.create(name="a")
            self.assertIsNotNone(locks.get("job"))
        self.assertIsNone(locks.get("job"))

    def test_other_thread_is_excluded(self) -> None:
        if IN_MEMORY:
            self.skipTest("another thread sees another database")
        seen: list[Any] = []

        def other() -> None:
            seen.append(locks.try_acquire("job"))
            connection.close()

        with locks.lock("job"):
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        self.assertEqual(seen, [None])


@override_settings(ROOT_URLCONF="tests.inner.code")
class InLiveServerTestCase(LockedCode, LiveServerTestCase):
    def test_view(self) -> None:
        for number in (1, 2):
            Group.objects.all().delete()
            with urlopen(f"{self.live_server_url}/job/") as answer:
                self.assertEqual(answer.read(), b"by the view", number)
        self.assertIsNone(locks.get("job"))

    def test_view_is_excluded(self) -> None:
        with locks.lock("job"), urlopen(f"{self.live_server_url}/job/") as answer:
            self.assertIn(b"SKIPPED", answer.read())
