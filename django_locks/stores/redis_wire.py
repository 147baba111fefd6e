"""What the Redis store and its servers say to each other: keys, scripts, arguments and replies. No I/O.

A name belongs to a bucket; all keys of a bucket lie in one slot of a cluster. Each bucket has

- ``…{bucket}:lease:<name>``, a string that lives as long as the lease: ``owner fence acquired_us holder``,
- ``…{bucket}:fence``, the highest fence ever granted in the bucket, for ever: one key for all names,
- ``…{bucket}:index``, a sorted set of the names by the end of their leases in milliseconds, for listing.

A release is published on a channel named as the lease's key, on a cluster a sharded one.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django_locks.instants import LAST, from_micros
from django_locks.values import LeaseInfo, Secret

from .base import Claim

CLUSTER_BUCKETS = 64
RENEW_BATCH = 1000  # leases a script: what a server does in two or three milliseconds
READ_BATCH = 500


class Script:
    """A Lua script and the name under which a server remembers it."""

    __slots__ = ("sha", "source")

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()


class _SecretBytes(bytes):
    """As `Secret`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"


class Call(NamedTuple):
    """A script with what follows its name in EVALSHA: the number of keys, the keys, the arguments."""

    script: Script
    arguments: tuple[Any, ...]
    #: WAIT for so many replicas, for so many milliseconds: the reply then comes with the number of those that have it.
    confirm: tuple[int, int] | None = None


# An owner comes with the space that ends it, so that none matches another's beginning. Numbers become text by
# string.format, because Lua's tostring rounds to 14 digits.
ACQUIRE = Script("""
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return false end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
local ends = string.format('%.0f', now_ms + ARGV[2])
if held then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('ZADD', KEYS[3], ends, ARGV[3])
  return tonumber(string.match(held, '^[^ ]* (%d+)'))
end
local fence = math.max(now, (tonumber(redis.call('GET', KEYS[2]) or 0)) + 1)
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text)
redis.call('SET', KEYS[1], ARGV[1] .. text .. ' ' .. string.format('%.0f', now) .. ' ' .. ARGV[4], 'PX', ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', now_ms))
redis.call('ZADD', KEYS[3], ends, ARGV[3])
return fence
""")

RENEW = Script("""
local time = redis.call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local ours = {}
for lease = 1, #KEYS - 1 do
  local key, owner, ttl, name = KEYS[lease + 1], ARGV[lease * 3 - 2], ARGV[lease * 3 - 1], ARGV[lease * 3]
  local held = redis.call('GET', key)
  ours[lease] = 0
  if held and string.sub(held, 1, #owner) == owner then
    redis.call('PEXPIRE', key, ttl)
    redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + ttl), name)
    ours[lease] = 1
  end
end
return ours
""")

# pcall: where nobody may publish (an ACL), or can (sharded channels on Redis 6), waiters look by themselves.
RELEASE_SOURCE = """
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local waiting = redis.pcall('PUBLISH', KEYS[1], '')
if type(waiting) ~= 'number' then waiting = 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[3])
  return 1 + waiting
end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], string.sub(held, #ARGV[1]), 'PX', ARGV[2])
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + ARGV[2]), ARGV[3])
return 1 + waiting
"""
RELEASE = Script(RELEASE_SOURCE)
CLUSTER_RELEASE = Script(RELEASE_SOURCE.replace("'PUBLISH'", "'SPUBLISH'"))

READ = Script("""
local time = redis.call('TIME')
local reply = {time[1] * 1000000 + time[2]}
for lease = 1, #KEYS do
  reply[lease * 2] = redis.call('GET', KEYS[lease])
  reply[lease * 2 + 1] = redis.call('PTTL', KEYS[lease])
end
return reply
""")

NAMES = Script("""
local time = redis.call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', 1000)
local reply = {page[1]}
for entry = 1, #page[2], 2 do
  local name, ends = page[2][entry], tonumber(page[2][entry + 1])
  if ends >= now_ms and string.sub(name, 1, #ARGV[2]) == ARGV[2] then reply[#reply + 1] = name end
end
return reply
""")

PAGE = Script("""
local time = redis.call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
local now, soon = string.format('%.0f', now_ms), string.format('%.0f', now_ms + ARGV[2])
local page = redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[1])
return {redis.call('ZCOUNT', KEYS[1], now, '+inf'), redis.call('ZCOUNT', KEYS[1], now, '(' .. soon), page}
""")

TRIM = Script("""
local time = redis.call('TIME')
local now_ms = math.floor((time[1] * 1000000 + time[2]) / 1000)
return redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now_ms))
""")


class Bucket:
    """The keys of one bucket. The number in braces comes first, so no braces of a name can choose the slot."""

    __slots__ = ("fence", "index", "lease")

    def __init__(self, namespace: str, number: int) -> None:
        stem = f"{namespace}{{{number}}}:".encode()
        self.lease, self.fence, self.index = stem + b"lease:", stem + b"fence", stem + b"index"


class Wire:
    """Builds the calls of one store and reads their replies."""

    def __init__(self, key_prefix: str, buckets: int) -> None:
        prefix = key_prefix.removesuffix(":")
        namespace = f"{prefix}:django_locks:" if prefix else "django_locks:"
        self.buckets = tuple(Bucket(namespace, number) for number in range(buckets))
        self._count = buckets
        self._release = RELEASE if buckets == 1 else CLUSTER_RELEASE

    def bucket(self, name: bytes) -> Bucket:
        """Return the bucket of a name: the same one in every process, unlike ``hash()``."""
        return self.buckets[zlib.crc32(name) % self._count]

    def acquire(self, name: str, owner: str, ttl: float, holder: str) -> Call:
        """Ask for the fence, or nil. One SET with its expiry: no lease can be left without an end."""
        text = name.encode()
        bucket = self.bucket(text)
        keys = (3, bucket.lease + text, bucket.fence, bucket.index)
        return Call(ACQUIRE, (*keys, write_owner(owner), milliseconds(ttl), text, holder.encode()))

    def release(self, name: str, owner: str, hold_for: float) -> Call:
        """Ask for 1 and the number of processes that wait for the name, or for 0: not this owner's."""
        text = name.encode()
        bucket = self.bucket(text)
        keep = milliseconds(hold_for) if hold_for > 0 else 0
        return Call(self._release, (2, bucket.lease + text, bucket.index, write_owner(owner), keep, text))

    def renew(self, leases: Iterable[Claim]) -> Iterator[tuple[list[str], Call]]:
        """Yield names and the call that renews them and answers 1 or 0 for each, in order."""
        groups: dict[Bucket, list[Claim]] = {}
        for lease in leases:
            if lease[1]:  # nobody owns a name that is only kept
                groups.setdefault(self.bucket(lease[0].encode()), []).append(lease)
        for bucket, claims in groups.items():
            for start in range(0, len(claims), RENEW_BATCH):
                batch = claims[start : start + RENEW_BATCH]
                yield [name for name, _, _ in batch], _renewal(bucket, batch)

    def channel(self, name: str) -> bytes:
        """Return the channel on which releases of the name are published."""
        text = name.encode()
        return self.bucket(text).lease + text

    def read(self, bucket: Bucket, names: Sequence[bytes]) -> Call:
        """Ask for what `leases_read` understands."""
        return Call(READ, (len(names), *[bucket.lease + name for name in names]))

    def names(self, bucket: Bucket, cursor: bytes, prefix: str) -> Call:
        """Ask for the next cursor and a page of live names; ``b"0"`` begins and ends. A name may come twice."""
        return Call(NAMES, (1, bucket.index, cursor, prefix.encode()))

    def page(self, bucket: Bucket, start: int, size: int, soon: float) -> Call:
        """Ask how many are live, how many end soon, and for the names that end first, each with its end."""
        return Call(PAGE, (1, bucket.index, size, milliseconds(soon), start))

    def trim(self, bucket: Bucket) -> Call:
        """Ask the index to forget what has expired."""
        return Call(TRIM, (1, bucket.index))


def _renewal(bucket: Bucket, claims: Sequence[Claim]) -> Call:
    keys = [bucket.index]
    arguments: list[bytes | int] = []
    for name, owner, ttl in claims:
        text = name.encode()
        keys.append(bucket.lease + text)
        arguments += (write_owner(owner), milliseconds(ttl), text)
    return Call(RENEW, (len(keys), *keys, *arguments))


def renewed(batches: Iterable[tuple[list[str], Call]], replies: Iterable[Sequence[int]]) -> set[str]:
    """Return the names that are still ours, by what the calls of `Wire.renew` have answered."""
    return {
        name
        for (names, _), reply in zip(batches, replies, strict=True)
        for name, ours in zip(names, reply, strict=True)
        if ours
    }


def leases_read(names: Sequence[bytes], reply: Sequence[Any]) -> Iterator[LeaseInfo]:
    """Yield the live ones of the leases that a `Wire.read` of the names has answered.

    Raises ValueError for what is none of ours.
    """
    for name, value, left in zip(names, reply[1::2], reply[2::2], strict=True):
        if value is None:
            continue
        try:
            yield _lease(name.decode(), value, left, reply[0])
        except ValueError as error:
            raise ValueError(f"the key of {name!r} holds no lease: something else has written it") from error


def _lease(name: str, value: bytes, left_ms: int, now_us: int) -> LeaseInfo:
    owner, fence, acquired, holder = value.split(b" ", 3)
    end = min(now_us + left_ms * 1000, LAST) if left_ms >= 0 else LAST  # a PERSIST by hand: it never ends
    return LeaseInfo(
        name=name,
        owner=read_owner(owner),
        holder=holder.decode(),
        fence=int(fence),
        acquired_at=from_micros(int(acquired)),
        expires_at=from_micros(end),
        remaining=(end - now_us) / 1_000_000,
    )


def write_owner(owner: str) -> bytes:
    """Return the owner as it begins a stored lease: without a space in it, and with one that ends it."""
    if " " in owner or "%" in owner:
        owner = owner.replace("%", "%25").replace(" ", "%20")
    return _SecretBytes(owner.encode("utf-8", "surrogatepass") + b" ")


def read_owner(stored: bytes) -> str:
    """Return the owner from what `write_owner` made of it, without the last space."""
    return Secret(stored.decode("utf-8", "surrogatepass").replace("%20", " ").replace("%25", "%"))


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up; what lies below a microsecond is the float's own noise."""
    return max(1, math.ceil(round(seconds * 1000, 3)))
