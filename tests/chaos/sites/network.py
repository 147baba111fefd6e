"""Faults of the network: those of a proxy."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.nemesis import Fault
from tests.servers.proxy import Proxy


def network_faults(proxy: Proxy, ttl: float) -> list[Fault]:
    def fault(kind: str, **attributes: object) -> Fault:
        return Fault.between(kind, lambda: vars(proxy).update(attributes), proxy.heal)

    def refuse() -> None:
        proxy.refusing = True
        proxy.cut()

    return [
        fault("delay", delay=0.1),
        fault("delay beyond the TTL", delay=0.6 * ttl),  # each way
        fault("drop requests", requests="drop"),
        fault("cut requests", requests="cut"),
        fault("hold replies", replies="hold"),
        fault("cut replies", replies="cut"),
        Fault.between("refuse connections", refuse, proxy.heal),
        Fault("cut some replies", lambda chance: _flickering(proxy, chance.random())),
    ]


@contextmanager
def _flickering(proxy: Proxy, seed: float) -> Iterator[None]:
    """Cut replies for moments only: else a new connection does not get past its first exchange with the server."""
    chance, healed = random.Random(seed), threading.Event()

    def flicker() -> None:
        while not healed.wait(chance.uniform(0.0, 0.03)):
            proxy.replies = "cut" if proxy.replies == "pass" else "pass"

    thread = threading.Thread(target=flicker, daemon=True)
    thread.start()
    try:
        yield
    finally:
        healed.set()
        thread.join()
        proxy.heal()
