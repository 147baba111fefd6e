"""What is special about the Redis store, on real servers. The rules of all stores are tested by the contract suite."""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.stores.redis import RedisStore
from django_locks.stores.redis_wire import CLUSTER_BUCKETS, Wire, leases_read, read_owner, write_owner
from django_locks.values import LONGEST
from tests.servers import redis as servers
from tests.servers.fixtures_redis import started

NAMES = ["a", "{x}b", "c{", "}d{", "{}", "job *", "jöb", "\U0001f512" * 200]
VERBS: dict[str, Callable[[RedisStore], Any]] = {
    "acquire": lambda store: store.acquire("other", "o", 30, "h"),
    "acquire again": lambda store: store.acquire("job", "me", 30, "h"),
    "refused": lambda store: store.acquire("job", "you", 30, "h"),
    "renew": lambda store: store.renew([("job", "me", 30)]),
    "release": lambda store: store.release("job", "me"),
    "hold": lambda store: store.release("job", "me", hold_for=5),
    "get": lambda store: store.get("job"),
    "leases": lambda store: list(store.leases()),
    "prune": lambda store: store.prune(0),
}
ONE_ROUND_TRIP = ["acquire", "acquire again", "refused", "renew", "release", "hold", "get", "prune"]


class Site:
    """The servers of one test, seen from outside of the store."""

    def __init__(self, urls: list[str], **options: Any) -> None:
        self.urls, self.options = urls, options
        self.clients = [redis.Redis.from_url(url) for url in urls]

    def store(self, key_prefix: str = "", **options: Any) -> RedisStore:
        return RedisStore("default", self.urls, key_prefix, **self.options, **options)

    def everywhere(self, *command: str) -> list[Any]:
        return [client.execute_command(*command) for client in self.clients]

    def raw_keys(self) -> list[bytes]:
        return sorted(key for keys in self.everywhere("KEYS", "*") for key in keys)

    def content(self) -> dict[bytes, bytes]:
        return {key: client.dump(key) for client in self.clients for key in client.keys("*")}


@pytest.fixture(params=["redis_url", "valkey_url"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    yield from _cleaned(Site([request.getfixturevalue(request.param)]))


@pytest.fixture
def cluster(cluster_urls: list[str]) -> Iterator[Site]:
    yield from _cleaned(Site(cluster_urls, cluster=True))


@pytest.fixture(params=["redis_url", "valkey_url", "cluster_urls"])
def any_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    urls = request.getfixturevalue(request.param)
    yield from _cleaned(Site(urls, cluster=True) if isinstance(urls, list) else Site([urls]))


def _cleaned(site: Site) -> Iterator[Site]:
    site.everywhere("FLUSHALL")
    yield site
    for client in site.clients:
        client.close()


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A server of its own, to be ill-treated."""
    yield from started(servers.running(servers.valkey_binary()))


@pytest.fixture
def cluster_servers() -> Iterator[list[servers.Server]]:
    yield from started(servers.cluster_servers())


@contextmanager
def commands(client: redis.Redis) -> Iterator[list[tuple[str, str]]]:
    """Collect the commands that the server runs meanwhile: who (``lua`` within scripts) and what."""
    seen: list[tuple[str, str]] = []
    with client.monitor() as monitor:
        client.echo("begin")
        while monitor.next_command()["command"] != "ECHO begin":
            pass
        yield seen
        client.echo("end")
        while (entry := monitor.next_command())["command"] != "ECHO end":
            seen.append((entry["client_type"], entry["command"]))


def asked(seen: list[tuple[str, str]]) -> list[str]:
    """Return the names of the commands that came from a client."""
    return [command.split()[0].upper() for who, command in seen if who != "lua"]


def ran(seen: list[tuple[str, str]]) -> list[str]:
    """Return the commands that scripts ran."""
    return [command for who, command in seen if who == "lua"]


@contextmanager
def unavailable_within(seconds: float) -> Iterator[pytest.ExceptionInfo[StoreUnavailable]]:
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        yield caught
    assert time.monotonic() - begin < seconds
    assert caught.value.__cause__ is not None
    assert caught.value.alias == "default"


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


# Round trips and scripts


@pytest.mark.parametrize("verb", VERBS)
def test_call_after_script_flush_succeeds(any_site: Site, verb: str) -> None:
    store, other = any_site.store(), any_site.store("b")
    for each in (store, other):
        each.acquire("job", "me", 30, "h")
    expected = VERBS[verb](other)
    any_site.everywhere("SCRIPT", "FLUSH")
    got = VERBS[verb](store)
    assert type(got) is type(expected)
    assert isinstance(got, int | list) or got == expected or got.owner == "me"


@pytest.mark.parametrize("verb", VERBS)
def test_server_restarted_while_idle_is_not_noticed(server: servers.Server, verb: str) -> None:
    store = RedisStore("default", server.url)
    before = store.acquire("job", "me", 30, "h")
    assert before
    server.restart()
    assert VERBS[verb](store) in (None, set(), [], False, 0) or "acquire" in verb or verb == "refused"
    assert store.acquire("next", "me", 30, "h") > before


@pytest.mark.parametrize("verb", ONE_ROUND_TRIP)
def test_verb_is_one_round_trip(site: Site, verb: str) -> None:
    store = site.store()
    store.acquire("job", "me", 30, "h")
    VERBS[verb](site.store("warm"))
    store.acquire("job", "me", 30, "h")
    with commands(site.clients[0]) as seen:
        VERBS[verb](store)
    assert asked(seen) == ["EVALSHA"]


def test_thousand_renewals_are_one_round_trip(site: Site) -> None:
    store = site.store()
    names = [f"job {number}" for number in range(1000)]
    for name in names:
        store.acquire(name, "me", 30, "h")
    store.renew([("job 0", "me", 30)])
    with commands(site.clients[0]) as seen:
        renewed = store.renew([(name, "me", 30) for name in names])
    assert renewed == set(names)
    assert asked(seen) == ["EVALSHA"]


def test_cluster_renewals_are_one_round_trip_a_node(cluster: Site) -> None:
    store = cluster.store()
    names = [f"job {number}" for number in range(300)]
    for name in names:
        store.acquire(name, "me", 30, "h")
    store.renew([(name, "me", 30) for name in names])
    before = [info["cmdstat_evalsha"]["calls"] for info in cluster.everywhere("INFO", "commandstats")]
    renewed = store.renew([*[(name, "me", 30) for name in names[1:]], (names[0], "you", 30)])
    after = [info["cmdstat_evalsha"]["calls"] for info in cluster.everywhere("INFO", "commandstats")]
    assert renewed == set(names[1:])
    assert sum(after) - sum(before) <= CLUSTER_BUCKETS
    assert all(late > early for early, late in zip(before, after, strict=True))


def test_refusal_writes_nothing(site: Site) -> None:
    store = site.store()
    store.acquire("job", "me", 30, "h")
    before = site.content()
    with commands(site.clients[0]) as seen:
        assert store.acquire("job", "you", 60, "h") is None
        assert store.renew([("job", "you", 60)]) == set()
        assert store.release("job", "you") is False
    assert {command.split()[0].upper() for command in ran(seen)} == {"GET", "TIME"}
    assert site.content() == before
    assert store.get("job").remaining <= 30


def test_grant_writes_the_lease_with_its_expiry_in_one_command(site: Site) -> None:
    store = site.store()
    with commands(site.clients[0]) as seen:
        store.acquire("job", "me", 30, "h")
    on_the_lease = [command.split() for command in ran(seen) if ":lease:job" in command]
    assert [words[0] for words in on_the_lease] == ["GET", "SET"]
    assert on_the_lease[1][-2:] == ["PX", "30000"]


# Keys


@pytest.mark.parametrize("name", [*NAMES, *[random.Random(n).randbytes(9).hex() for n in range(100)]])
def test_keys_of_a_call_share_one_slot(name: str) -> None:
    wire = Wire("stg:", CLUSTER_BUCKETS)
    calls = [wire.acquire(name, "o", 1, "h"), wire.release(name, "o", 0), *[c for _, c in wire.renew([(name, "o", 1)])]]
    keys = [key for call in calls for key in call.arguments[1 : 1 + call.arguments[0]]]
    assert len(keys) == 7
    assert len({key_slot(key) for key in keys}) == 1


def test_name_is_in_the_same_bucket_in_every_process() -> None:
    wire = Wire("", CLUSTER_BUCKETS)
    assert wire.bucket(b"tenant-7").fence == b"django_locks:{10}:fence"


def test_buckets_spread_over_the_slots() -> None:
    slots = sorted(key_slot(bucket.fence) for bucket in Wire("", CLUSTER_BUCKETS).buckets)
    for nodes in (3, 6, 12):
        counts = [0] * nodes
        for slot in slots:
            counts[slot * nodes // 16384] += 1
        assert min(counts) >= CLUSTER_BUCKETS / nodes / 3, counts


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works(any_site: Site, name: str) -> None:
    store = any_site.store()
    assert store.acquire(name, "me", 30, "h")
    assert store.acquire(name, "you", 30, "h") is None
    assert store.get(name).name == name
    assert [lease.name for lease in store.leases()] == [name]
    assert store.renew([(name, "me", 30)]) == {name}
    assert store.release(name, "me") is True
    assert store.acquire(name, "you", 30, "h")


def test_raw_keys_begin_with_their_prefix(any_site: Site) -> None:
    stg, prd, plain = any_site.store("stg:"), any_site.store("prd"), any_site.store()
    for store, name in ((stg, "stg:mail"), (prd, "prd:mail"), (plain, "mail")):
        assert store.acquire(name, "me", 30, "h")
    starts = {key.split(b"{")[0] for key in any_site.raw_keys()}
    assert starts == {b"stg:django_locks:", b"prd:django_locks:", b"django_locks:"}
    assert len(any_site.raw_keys()) == 9
    assert [lease.name for lease in prd.leases()] == ["prd:mail"]


def test_nothing_is_left_of_a_released_name(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("job", "me", 30, "h")
    store.release("job", "me")
    (left,) = any_site.raw_keys()
    assert left.endswith(b":fence")


def test_nothing_is_left_of_an_expired_name_after_prune(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("job", "me", 0.05, "h")
    wait_for(lambda: store.get("job") is None)
    assert list(store.leases()) == []
    time.sleep(0.002)  # the index ends a lease by the millisecond
    assert store.prune(3600) == 0
    (left,) = any_site.raw_keys()
    assert left.endswith(b":fence")


def test_grant_trims_the_index(site: Site) -> None:
    store = site.store()
    for number in range(10):
        store.acquire(f"old {number}", "me", 0.02, "h")
    time.sleep(0.05)
    store.acquire("new", "me", 30, "h")
    assert site.clients[0].zrange("django_locks:{0}:index", 0, -1) == [b"new"]


def test_leases_over_pages_and_batches_are_all_found_in_order(any_site: Site) -> None:
    store = any_site.store()
    names = sorted(f"{kind}:{number}" for number in range(650) for kind in ("a*", "ab"))
    for name in names:
        store.acquire(name, "me", 60, "h")
    assert [lease.name for lease in store.leases()] == names
    assert [lease.name for lease in store.leases("a*")] == [name for name in names if name.startswith("a*")]


def test_renewed_lease_is_listed_after_its_first_end(site: Site) -> None:
    store = site.store()
    store.acquire("job", "me", 0.2, "h")
    store.renew([("job", "me", 30)])
    time.sleep(0.3)
    store.acquire("other", "me", 0.2, "h")
    assert "job" in [lease.name for lease in store.leases()]


# Durations


def test_fraction_of_a_ttl_rounds_up_to_the_millisecond(any_site: Site) -> None:
    store = any_site.store()
    assert store.acquire("foo", "a", 1.2345, "h")
    assert 1.0 < store.get("foo").remaining <= 1.235
    assert store.acquire("foo", "b", 1, "h") is None


@pytest.mark.parametrize("ttl", [0.0000001, 0.001, 0.3, 1.1])
def test_ttl_becomes_whole_milliseconds(ttl: float) -> None:
    call = Wire("", 1).acquire("foo", "a", ttl, "h")
    assert call.arguments[5] == max(1, round(ttl * 1000))


def test_ten_years_work_with_every_verb(any_site: Site) -> None:
    store = any_site.store()
    assert store.acquire("foo", "a", LONGEST, "h")
    assert store.renew([("foo", "a", LONGEST)]) == {"foo"}
    lease = store.get("foo")
    assert lease.remaining == pytest.approx(LONGEST, abs=5)
    assert (lease.expires_at - lease.acquired_at).total_seconds() == pytest.approx(LONGEST, abs=5)
    assert store.release("foo", "a", hold_for=LONGEST)
    assert [held.name for held in store.leases()] == ["foo"]


def test_no_lease_is_without_an_end(site: Site) -> None:
    store, client = site.store(), site.clients[0]
    key = "django_locks:{0}:lease:job"
    store.acquire("job", "me", 30, "h")
    assert 0 < client.pttl(key) <= 30_000
    store.renew([("job", "me", 20)])
    assert 0 < client.pttl(key) <= 20_000
    store.release("job", "me", hold_for=10)
    assert 0 < client.pttl(key) <= 10_000


# Owners and fences


@pytest.mark.parametrize(
    ("owner", "others"),
    [
        ("a", ["", "a b", "-", "a "]),
        ("a b", ["a", "a%20b", "a "]),
        ("a%20b", ["a b"]),
        ("%", ["%25"]),
        ("\udc80", ["?"]),
    ],
)
def test_owner_is_compared_as_a_whole(site: Site, owner: str, others: list[str]) -> None:
    store = site.store()
    assert store.acquire("job", owner, 30, "a holder")
    assert store.get("job").owner == owner
    for other in others:
        assert store.acquire("job", other, 30, "h") is None
        assert store.renew([("job", other, 30)]) == set()
        assert store.release("job", other) is False
    assert store.release("job", owner) is True


def test_stored_owner_reads_back() -> None:
    for owner in ("", "a", "a b", "%", "%20", "%2520 %25"):
        assert read_owner(write_owner(owner)[:-1]) == owner


def test_kept_name_has_no_owner_and_is_freed_by_none(any_site: Site) -> None:
    store = any_site.store()
    fence = store.acquire("job", "me", 30, "host:1 main")
    assert store.release("job", "me", hold_for=20)
    kept = store.get("job")
    assert (kept.owner, kept.holder, kept.fence) == ("", "host:1 main", fence)
    assert store.renew([("job", "me", 30), ("job", "", 30)]) == set()
    assert store.release("job", "me") is False
    assert store.acquire("job", "you", 30, "h") is None
    assert store.release("job", "") is True
    assert store.acquire("job", "you", 30, "h") > fence


def test_fence_rises_after_flushall(any_site: Site) -> None:
    store = any_site.store()
    before = store.acquire("job", "me", 30, "h")
    any_site.everywhere("FLUSHALL")
    assert store.renew([("job", "me", 30)]) == set()
    assert store.get("job") is None
    assert store.acquire("job", "you", 30, "h") > before


@pytest.mark.parametrize("ahead", [2**53 - 10, 2_000_000_000_000_001, 9_007_199_254_740_001])
def test_fence_goes_on_from_a_mark_ahead_of_the_clock(site: Site, ahead: int) -> None:
    store = site.store()
    site.clients[0].set("django_locks:{0}:fence", ahead)
    for step in (1, 2, 3):
        assert store.acquire("job", "me", 30, "h") == ahead + step
        assert store.acquire("job", "me", 30, "h") == ahead + step
        assert store.get("job").fence == ahead + step
        store.release("job", "me")
    assert int(site.clients[0].get("django_locks:{0}:fence")) == ahead + 3


def test_first_fence_is_the_clock_of_the_server(site: Site) -> None:
    seconds, micros = site.clients[0].time()
    fence = site.store().acquire("job", "me", 30, "h")
    assert 0 <= fence - (seconds * 1_000_000 + micros) < 5_000_000


# Client options


OPTIONS: list[dict[str, Any]] = [
    {},
    {"decode_responses": True},
    {"encoding": "latin-1"},
    {"decode_responses": True, "encoding": "latin-1"},
    {"decode_responses": True, "encoding": "ascii"},
    {"protocol": 3, "decode_responses": True},
]


@pytest.mark.parametrize("mine", OPTIONS)
@pytest.mark.parametrize("yours", OPTIONS)
def test_decoding_does_not_matter(any_site: Site, mine: dict[str, Any], yours: dict[str, Any]) -> None:
    a, b = any_site.store(**mine), any_site.store(**yours)
    name, owner, holder = "jöb \U0001f512", "me", "hôst:1 \U0001f512"
    fence = a.acquire(name, owner, 30, holder)
    assert fence
    assert b.acquire(name, "you", 30, "h") is None
    assert b.get(name) is not None
    assert (b.get(name).name, b.get(name).owner, b.get(name).holder) == (name, owner, holder)
    assert [lease.name for lease in b.leases("jö")] == [name]
    assert b.renew([(name, owner, 30)]) == {name}
    assert a.release(name, owner) is True
    assert b.acquire(name, "you", 30, "h") > fence


def test_parameters_of_the_url_work(redis_url: str) -> None:
    store = RedisStore("default", f"{redis_url}/3?decode_responses=True&encoding=latin-1&socket_timeout=1")
    assert store.acquire("jöb-url", "me", 30, "h")
    assert store.servers()[0][2] == 3
    assert store.get("jöb-url").name == "jöb-url"
    assert store.release("jöb-url", "me")


def test_more_threads_than_the_drivers_limit_get_connections(server: servers.Server) -> None:
    store = RedisStore("default", server.url)
    grants: list[int | None] = []
    crowd = [
        threading.Thread(target=lambda n=number: grants.append(store.acquire(f"job {n}", "me", 30, "h")))
        for number in range(150)
    ]
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("CLIENT", "PAUSE", 700, "WRITE")
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert client.info("clients")["connected_clients"] > 120
    assert len(grants) == 150
    assert all(grants)
    store.close()


# Ways to a server


def test_unix_socket_works(server: servers.Server) -> None:
    store = RedisStore("default", f"{server.unix_url}?db=2")
    assert store.acquire("job", "me", 30, "h")
    assert store.servers() == [(server.unix_path, 2)]
    with redis.Redis.from_url(server.url, db=2) as client:
        assert client.exists("django_locks:{0}:lease:job")


def test_plain_list_asks_the_first_alone(redis_url: str) -> None:
    store = RedisStore("default", [redis_url, "redis://127.0.0.1:1/0"])
    name = "list " + random.randbytes(4).hex()
    assert store.acquire(name, "me", 30, "h")
    assert all(store.get(name) is not None for _ in range(5))
    assert store.release(name, "me")
    assert len(store.servers()) == 1


def test_sentinel_leads_to_the_primary(server: servers.Server) -> None:
    with servers.sentinel(server) as watcher:
        store = RedisStore("default", ["redis://127.0.0.1:1", watcher.url], sentinel="mymaster")
        assert store.acquire("job", "me", 30, "h")
        server.restart()
        assert store.acquire("job", "me", 30, "h")
        assert store.release("job", "me")
        store.close()
        assert store.acquire("job", "me", 30, "h")
    with redis.Redis.from_url(server.url) as client:
        assert client.exists("django_locks:{0}:lease:job")


def test_unknown_primary_is_unavailable(server: servers.Server) -> None:
    with servers.sentinel(server) as watcher:
        url = watcher.url.replace("//", "//:geheim@")
        store = RedisStore("default", url, sentinel="another", sentinel_kwargs={"password": "secret2"})
        with unavailable_within(6) as caught:
            store.acquire("job", "me", 30, "h")
        text = "".join(traceback.format_exception(caught.value))
        assert "geheim" not in text
        assert "secret2" not in text


def test_moved_slot_is_followed(cluster_servers: list[servers.Server]) -> None:
    store = RedisStore("default", [server.url for server in cluster_servers], cluster=True)
    names = [f"job {number}" for number in range(20)]
    for name in names:
        store.acquire(name, "me", 30, "h")
        store.release(name, "me")
    clients = [redis.Redis.from_url(server.url) for server in cluster_servers]
    for bucket in store._wire.buckets:
        _move_slot(clients, key_slot(bucket.fence))
    assert all(store.acquire(name, "me", 30, "h") for name in names)
    assert store.renew([(name, "me", 30) for name in names]) == set(names)
    assert len(list(store.leases())) == 20
    assert all(store.release(name, "me") for name in names)
    for client in clients:
        client.close()


def _move_slot(clients: list[redis.Redis], slot: int) -> None:
    """Give an empty slot to the first node, as the manual of CLUSTER SETSLOT says."""
    target = clients[0].execute_command("CLUSTER", "MYID")
    owner = next(
        range_[2] for range_ in clients[0].execute_command("CLUSTER", "SLOTS") if range_[0] <= slot <= range_[1]
    )
    source = next(client for client in clients if client.get_connection_kwargs()["port"] == owner[1])
    if source is clients[0]:
        return
    source.flushall()
    clients[0].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.execute_command("CLUSTER", "MYID"))
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
    clients[0].execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)
    source.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)


# Failures


def test_closed_port_is_unavailable() -> None:
    store = RedisStore("default", f"redis://user:geheim@127.0.0.1:{servers.free_port()}")
    for verb, call in VERBS.items():
        with unavailable_within(6) as caught:
            call(store)
        assert "geheim" not in "".join(traceback.format_exception(caught.value)), verb
    assert "'other'" in str(_failure(store, "acquire"))


def _failure(store: RedisStore, verb: str) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        VERBS[verb](store)
    return caught.value


def test_wrong_password_is_unavailable() -> None:
    with servers.running(servers.valkey_binary(), "--requirepass", "right") as server:
        store = RedisStore("default", server.url.replace("//", "//:geheim@"))
        with unavailable_within(6) as caught:
            store.acquire("job", "me", 30, "h")
        assert "geheim" not in "".join(traceback.format_exception(caught.value))
        assert "geheim" not in repr(store)
        right = RedisStore("default", server.url.replace("//", "//:right@"))
        assert right.acquire("job", "me", 30, "h")
        assert "right" not in repr(right)


@pytest.mark.parametrize("options", [{}, {"cluster": True}, {"sentinel": "mymaster"}])
def test_server_that_never_answers_is_unavailable(options: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        urls = [f"redis://127.0.0.1:{hole.getsockname()[1]}"] * (3 if options else 1)
        store = RedisStore("default", urls, **options)
        with unavailable_within(6):
            store.acquire("job", "me", 30, "h")


@pytest.mark.parametrize("verb", VERBS)
def test_hung_server_is_unavailable(server: servers.Server, verb: str) -> None:
    store = RedisStore("default", server.url, socket_timeout=0.2)
    store.acquire("job", "me", 30, "h")
    server.pause()
    with unavailable_within(1):
        VERBS[verb](store)
    server.resume()
    assert store.acquire("later", "me", 30, "h")


def test_hung_node_does_not_keep_the_others_from_renewals(cluster_servers: list[servers.Server]) -> None:
    store = RedisStore("default", [server.url for server in cluster_servers], cluster=True)
    names = [f"job {number}" for number in range(200)]
    for name in names:
        store.acquire(name, "me", 30, "h")
    cluster_servers[0].pause()
    with unavailable_within(6):
        store.renew([(name, "me", 90) for name in names])
    cluster_servers[0].resume()
    wait_for(lambda: _renewed(store, names) is not None)
    assert len(_renewed(store, names) or ()) > 90
    for server in cluster_servers:
        server.pause()
    with unavailable_within(6):
        store.acquire("job", "me", 30, "h")
    with unavailable_within(6):
        store.renew([(name, "me", 90) for name in names])


def _renewed(store: RedisStore, names: list[str]) -> list[str] | None:
    try:
        return [lease.name for lease in store.leases() if lease.remaining > 60]
    except StoreUnavailable:
        return None


def test_error_of_the_script_is_not_contention(site: Site) -> None:
    site.clients[0].lpush("django_locks:{0}:lease:job", "what?")
    store = site.store()
    with unavailable_within(1):
        store.acquire("job", "me", 30, "h")
    with unavailable_within(1):
        store.release("job", "me")
    assert store.acquire("other", "me", 30, "h")


class Breaking:
    """A link whose connection breaks once, after the request was carried out."""

    def __init__(self, link: Any) -> None:
        self.link, self.broken = link, False

    def run(self, call: Any) -> Any:
        reply = self.link.run(call)
        if not self.broken:
            self.broken = True
            raise redis.ConnectionError("Connection closed by server.")
        return reply


def test_lost_reply_of_a_release_is_a_release(site: Site) -> None:
    store = site.store()
    store.acquire("job", "me", 30, "h")
    store._link = Breaking(store._link)  # type: ignore[assignment]
    assert store.release("job", "me") is True
    assert store.release("job", "me") is False


def test_lost_reply_of_an_acquire_is_a_grant(site: Site) -> None:
    store = site.store()
    store.get("job")
    store._link = Breaking(store._link)  # type: ignore[assignment]
    fence = store.acquire("job", "me", 30, "h")
    assert fence == store.get("job").fence


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("behind_sentinel", [False, True])
def test_interrupted_call_does_not_shift_the_replies(server: servers.Server, behind_sentinel: bool) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    with servers.sentinel(server) as watcher:
        store = RedisStore("default", watcher.url, sentinel="mymaster")
        store = store if behind_sentinel else RedisStore("default", server.url)
        store.acquire("warm", "me", 30, "h")
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            server.pause()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupt):
                store.acquire("job", "me", 30, "h")
            threading.Timer(0.3, server.resume).start()
            assert store.acquire("job", "you", 30, "h") is None
            assert store.get("job").owner == "me"
        finally:
            signal.signal(signal.SIGALRM, previous)
            server.resume()


# Processes


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_store_works_on_both_sides_of_a_fork(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("parent", "me", 30, "h")
    child = os.fork()
    if child == 0:
        try:
            fine = all(store.acquire(f"child {n}", "me", 30, "h") and store.get("parent") for n in range(50))
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert all(store.acquire(f"mine {n}", "me", 30, "h") and store.get("parent") for n in range(50))
    assert _exit_code(child) == 0
    assert len(list(store.leases())) == 101


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_fork_amid_another_threads_call_leaves_the_child_working(any_site: Site) -> None:
    store = any_site.store()
    store.acquire("parent", "me", 30, "h")
    locks = [store._opening, *[client.connection_pool._lock for client in _clients(store)]]
    with _held_by_another_thread(locks):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if store.acquire("child", "me", 30, "h") else 1)
            finally:
                os._exit(2)
    assert _exit_code(child) == 0


def _exit_code(child: int) -> int:
    """Wait for the process; one that hangs is killed."""
    deadline = time.monotonic() + 10
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


@contextmanager
def _held_by_another_thread(locks: list[Any]) -> Iterator[None]:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def _clients(store: RedisStore) -> list[Any]:
    client: Any = store._link.client  # type: ignore[union-attr]
    return [node.redis_connection for node in client.get_nodes()] if hasattr(client, "get_nodes") else [client]


def test_closed_store_opens_again(any_site: Site) -> None:
    store = any_site.store()
    store.close()
    assert store.acquire("job", "me", 30, "h")
    store.close()
    store.close()
    assert store.release("job", "me") is True


# Settings


@pytest.mark.parametrize(
    ("location", "options", "hints"),
    [
        (None, {}, ["LOCATION"]),
        ("", {}, ["LOCATION", "redis://"]),
        ([], {}, ["LOCATION"]),
        ([b"redis://h"], {}, ["LOCATION"]),
        ("localhost:6379", {}, ["redis://"]),
        ("http://localhost", {}, ["redis://"]),
        ("unix://", {}, ["path"]),
        ("redis://h:port", {}, ["LOCATION"]),
        ("redis://:geheim#x@h:6379/0", {}, ["%XX"]),
        ("redis://h?db=geheim", {}, ["LOCATION"]),
        ("redis://h?sokcet_timeout=1", {}, ["'sokcet_timeout'", "'socket_timeout'"]),
        ("redis://h", {"socket_timout": 1}, ["'socket_timout'", "'socket_timeout'"]),
        ("redis://h", {"sentinal": "m"}, ["'sentinal'", "'sentinel'"]),
        ("redis://h", {"host": "x"}, ["'host'", "LOCATION"]),
        ("redis://h", {"connection_pool": object()}, ["'connection_pool'"]),
        ("redis://h", {"max_connections": -1}, ["max_connections"]),
        ("redis://h", {"cluster": True, "sentinel": "m"}, ["'cluster'", "'sentinel'"]),
        ("redis://h", {"cluster": True, "db": 1}, ["'db'"]),
        ("redis://h/1", {"cluster": True}, ["'db'"]),
        ("redis://h", {"cluster": True, "health_check_interval": 1}, ["'health_check_interval'"]),
        ("redis://h", {"sentinel_kwargs": {"password": "geheim"}}, ["'sentinel_kwargs'"]),
        ("redis://h", {"sentinel": "m", "sentinel_kwargs": {"pasword": "geheim"}}, ["'pasword'", "'password'"]),
        ("unix:///run/redis.sock", {"cluster": True}, ["unix://"]),
    ],
)
def test_wrong_setting_is_refused_by_name(location: Any, options: dict[str, Any], hints: list[str]) -> None:
    with pytest.raises(InvalidLockStore) as caught:
        RedisStore("reports", location, **options)
    assert caught.value.alias == "reports"
    assert "'reports'" in str(caught.value)
    assert all(hint in str(caught.value) for hint in hints), str(caught.value)
    assert "geheim" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_brace_in_a_prefix_is_refused_on_a_cluster() -> None:
    with pytest.raises(InvalidLockStore, match="KEY_PREFIX"):
        RedisStore("default", ["redis://h"], "{}:", cluster=True)
    RedisStore("default", ["redis://h"], "{}:")


def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "django_locks.stores.redis_client", None)
    with pytest.raises(InvalidLockStore, match=r'pip install "django-lease-locks\[redis\]"'):
        RedisStore("default", "redis://h")


@pytest.mark.parametrize(
    ("location", "options", "servers"),
    [
        ("redis://", {}, [("127.0.0.1", 6379, 0)]),
        ("redis://u:p@LOCALHOST/2", {}, [("127.0.0.1", 6379, 2)]),
        ("redis://h:6380?db=3", {"db": 1}, [("h", 6380, 3)]),
        ("rediss://h", {"db": 1}, [("h", 6379, 1)]),
        ("unix:///run/r.sock?db=1", {}, [("/run/r.sock", 1)]),
        (["redis://a", "redis://b"], {}, [("a", 6379, 0)]),
        (("redis://a", "redis://b/0"), {"cluster": True}, [("a", 6379, 0), ("b", 6379, 0)]),
        (["redis://a/4", "redis://b"], {"sentinel": "m"}, [("a", 26379, 4), ("b", 26379, 4)]),
    ],
)
def test_servers_are_told_without_asking_them(location: Any, options: dict[str, Any], servers: list[Any]) -> None:
    store = RedisStore("default", location, **options)
    assert store.servers() == servers
    assert store.check() == []


def test_time_outs_are_short_and_retries_off() -> None:
    (client,) = _clients(_opened(RedisStore("default", "rediss://h")))
    options = client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (2, 2)
    assert options["retry"].get_retries() == 0
    (client,) = _clients(_opened(RedisStore("default", "redis://h?socket_timeout=7", socket_connect_timeout=3)))
    options = client.connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (7, 3)


def _opened(store: RedisStore) -> RedisStore:
    store._open()
    return store


def test_reply_without_a_lease_reads_as_none() -> None:
    assert list(leases_read([b"a", b"b"], [1, None, -2, b"o 5 6 h h", 1500])) != []
    assert [lease.remaining for lease in leases_read([b"b"], [1, b" 5 6 ", math.ceil(1.5)])] == [0.002]
