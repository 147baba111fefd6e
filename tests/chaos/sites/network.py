"""Faults of the network: those of a proxy."""

from __future__ import annotations

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
    ]
