"""Event loops that come and go, and what is left of their connections to Redis."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from django_locks.exceptions import InvalidLockStore
from django_locks.stores.per_loop import PerLoop
from django_locks.stores.redis import RedisStore
from tests.loops import in_loop
from tests.servers import redis as servers
from tests.servers.fixtures_redis import started

from .redis_site import Site, cleaned, exit_code, listed


def connections(site: Site) -> int:
    """Return how many connections others than the site itself have open."""
    return sum(len(client.client_list()) - 1 for client in site.clients)


def assert_no_more_connections(site: Site, before: int) -> None:
    deadline = time.monotonic() + 10
    while connections(site) > before:
        assert time.monotonic() < deadline, site.everywhere("CLIENT", "LIST")
        time.sleep(0.01)


# Event loops


async def use(store: RedisStore) -> None:
    await asyncio.gather(*(store.aacquire(f"job {number}", "me", 30, "h") for number in range(3)))
    assert len(await listed(store)) == 3


def test_loop_that_ends_closes_its_connections(any_site: Site) -> None:
    store = any_site.store()
    before = connections(any_site)
    for _ in range(3):
        asyncio.run(use(store))
        assert_no_more_connections(any_site, before)
    gc.collect()


def test_loop_that_was_only_closed_is_cleaned_up_after(any_site: Site) -> None:
    store = any_site.store()
    before = connections(any_site)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use(store))
        loop.close()
    store.close()
    assert_no_more_connections(any_site, before)
    gc.collect()


@pytest.fixture
def tls_site(tmp_path: Path) -> Iterator[Site]:
    """A server that speaks TLS, too, with a certificate of its own making."""
    openssl = shutil.which("openssl")
    if openssl is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("openssl is missing: apt-get install openssl")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", servers.free_port()
    make = [openssl, "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    for _ in started(servers.redis(*options, "--tls-auth-clients", "no")):
        yield from cleaned(Site([f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"]))


def test_loop_that_was_only_closed_is_cleaned_up_after_over_tls(tls_site: Site) -> None:
    test_loop_that_was_only_closed_is_cleaned_up_after(tls_site)
    assert tls_site.store().renew([("job 0", "me", 30)]) == {"job 0"}


def test_store_closed_by_another_thread_closes_the_connections_of_a_running_loop(any_site: Site) -> None:
    async def main() -> None:
        await use(store)
        thread = threading.Thread(target=store.close)
        thread.start()
        deadline = time.monotonic() + 10
        while connections(any_site) > before:
            assert time.monotonic() < deadline, any_site.everywhere("CLIENT", "LIST")
            await asyncio.sleep(0.01)
        thread.join()
        await use(store)

    store = any_site.store()
    before = connections(any_site)
    asyncio.run(main())
    assert_no_more_connections(any_site, before)


@in_loop
async def test_link_that_is_used_after_its_close_keeps_no_connection(any_site: Site) -> None:
    store = any_site.store()
    before = connections(any_site)
    await use(store)
    link: Any = store._async_links.get()
    await link.aclose()
    assert connections(any_site) == before
    for _ in range(2):
        assert await store.aacquire("job 0", "me", 30, "h")
        assert store._async_links.get() is link
        assert_no_more_connections(any_site, before)


class Made:
    abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


class ClosedLoop:
    """A loop that another thread cleans up after just when this one has seen that it is closed."""

    def __init__(self, links: Any) -> None:
        self.links, self.asked = links, 0

    def is_closed(self) -> bool:
        self.asked += 1
        if self.asked == 1:
            self.links._abandon_closed()
        return True


def test_two_threads_that_clean_up_after_a_loop_abandon_its_link_once() -> None:
    links: PerLoop[Any] = PerLoop(Made)
    made, loop = Made(), ClosedLoop(links)
    links._kept[loop] = made, None  # type: ignore[assignment, index]
    links.close()
    assert (made.abandoned, loop.asked) == (1, 2)


def test_generator_that_releases_while_its_loop_ends_leaves_no_connection(any_site: Site) -> None:
    async def leases() -> Any:
        try:
            while True:
                yield await store.aacquire("job", "me", 30, "h")
        finally:
            await asyncio.sleep(0.05)
            released.append(await store.arelease("job", "me"))

    async def main() -> None:
        generators.append(leases())
        assert await anext(generators[0])

    store = any_site.store()
    before = connections(any_site)
    released: list[bool] = []
    generators: list[Any] = []
    asyncio.run(main())
    assert released == [True]
    assert_no_more_connections(any_site, before)


LOOPS = """
import asyncio, threading, unittest
import django
from asgiref.sync import async_to_sync
from django.conf import settings

settings.configure(LOCKS={{"default": {{
    "BACKEND": "django_locks.stores.redis.RedisStore", "LOCATION": {location!r}, "OPTIONS": {options!r}
}}}})
django.setup()
from django_locks import locks

async def take_and_release(name="x"):
    async with locks.lock(name, wait=10) as guard:
        await guard.aextend()
        assert await locks.aget(name)

asyncio.run(take_and_release())
asyncio.run(take_and_release())
threads = [threading.Thread(target=async_to_sync(take_and_release)) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()

class Tests(unittest.IsolatedAsyncioTestCase):
    async def test_one(self): await take_and_release()
    async def test_two(self): await take_and_release()

unittest.main(argv=["x"], exit=False, verbosity=0)
print("done")
"""


def test_process_with_many_loops_ends_without_a_warning(any_site: Site) -> None:
    script = LOOPS.format(location=any_site.urls, options=any_site.options)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "done\n"
    # asyncio's debug mode may call the first connection slow; nothing else may be said.
    said = [line for line in ended.stderr.splitlines() if not line.startswith("Executing <")]
    assert [line for line in said if line.strip("-.")] == ["Ran 2 tests in " + said[1].split()[4], "OK"], ended.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_fork_amid_a_running_loop_leaves_both_sides_working(any_site: Site) -> None:
    async def main() -> int:
        await use(store)
        child = os.fork()
        if child == 0:
            try:
                asyncio._set_running_loop(None)  # type: ignore[attr-defined]  # as Python 3.12 does after a fork
                asyncio.run(use(store))
                os._exit(0)
            finally:
                os._exit(2)
        for _ in range(20):
            await use(store)
        return await asyncio.to_thread(exit_code, child)

    store = any_site.store()
    assert asyncio.run(main()) == 0


def test_option_that_asyncio_does_not_take_is_told(valkey_url: str) -> None:
    store = RedisStore("default", valkey_url, ssl_validate_ocsp=True)
    with pytest.raises(InvalidLockStore, match=r"redis.asyncio does not take ssl_validate_ocsp"):
        asyncio.run(store.aget("x"))


@in_loop
async def test_retries_of_the_options_are_those_of_asyncio() -> None:
    store = RedisStore("default", "redis://h", retry=Retry(ConstantBackoff(0.1), 1))
    link: Any = store._async_links.get()
    retry = link._pool.connection_kwargs["retry"]
    assert inspect.iscoroutinefunction(retry.call_with_retry)
    assert retry.get_retries() == 1


@in_loop
async def test_retries_that_are_none_are_the_drivers_own(valkey_url: str) -> None:
    store = RedisStore("default", valkey_url, retry=None)
    link: Any = store._async_links.get()
    assert link._pool.connection_kwargs.get("retry") is None
    assert await store.aacquire("without retries", "me", 0.1, "h")
