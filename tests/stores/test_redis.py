"""What is special about the Redis store, on real servers. The rules of all stores are tested by the contract suite."""

from __future__ import annotations

import random
import time

import pytest
from redis.crc import key_slot

from django_locks.stores.redis import RedisStore
from django_locks.stores.redis_wire import CLUSTER_BUCKETS, Wire, read_owner, write_owner
from django_locks.values import LONGEST
from tests.servers import redis as servers

from .redis_site import (
    NAMES,
    ONE_ROUND_TRIP,
    VERBS,
    Site,
    asked,
    commands,
    ran,
    wait_for,
)

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


def test_page_of_more_than_a_thousand_leases_comes_by_their_ends(any_site: Site) -> None:
    store = any_site.store()
    names = [f"job {number}" for number in range(1005)]
    for number, name in enumerate(names):
        store.acquire(name, "me", 300 + 60 * number, "h")
    for start in (0, 700, 1002, 1005):
        total, soon, page = store.browse(start, 4, soon=590)
        assert (total, soon) == (1005, 5)
        assert [lease.name for lease in page] == names[start : start + 4]
        assert all(lease.owner == "me" for lease in page)


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
