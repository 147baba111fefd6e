"""Inject faults, one after the other, as a seeded random generator says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

from .history import Recorder, now


class Fault(NamedTuple):
    kind: str
    #: Enters when the fault is there, and leaves when it is healed. May enter with the labels of workers it has hit.
    inject: Callable[[random.Random], AbstractContextManager[list[str] | None]]

    @classmethod
    def between(cls, kind: str, inject: Callable[[], object], heal: Callable[[], object] = lambda: None) -> Fault:
        """Return a fault that one call brings about, and another one heals."""

        @contextmanager
        def fault(chance: random.Random) -> Iterator[None]:
            inject()
            try:
                yield
            finally:
                heal()

        return cls(kind, fault)


def torment(
    groups: Sequence[Sequence[Fault]],
    recorder: Recorder,
    chance: random.Random,
    ttl: float,
    is_over: Callable[[], bool],
) -> None:
    """Inject faults until it is over: of each group one at a time at the most, each as often as the others.

    Those of the first group come first and are healed last: what a stopped worker has locked would hold them up.
    """
    bags = [_draw(group, chance) for group in groups]
    while not is_over():
        with ExitStack() as stack:
            for number in sorted(chance.sample(range(len(bags)), chance.randint(1, len(bags)))):
                stack.enter_context(_recorded(next(bags[number]), recorder, chance))
            time.sleep(chance.uniform(0.4, 2.0) * ttl)
        time.sleep(chance.uniform(0.0, 0.7) * ttl)


def _draw(faults: Sequence[Fault], chance: random.Random) -> Iterator[Fault]:
    while True:
        yield from chance.sample(faults, len(faults))


@contextmanager
def _recorded(fault: Fault, recorder: Recorder, chance: random.Random) -> Iterator[None]:
    begin, workers = now(), None
    try:
        with fault.inject(chance) as workers:
            yield
    finally:
        recorder.write("fault", fault=fault.kind, begin=begin, workers=workers or [])
