from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from django.core.checks import ERROR

from django_locks.checks import check_deployment, check_locks
from django_locks.conf import entries
from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.findings import FAIL, OK, WARN, Finding, Level
from django_locks.management.probe import Measured, measure, percentile
from django_locks.management.subcommands.base import Subcommand
from django_locks.service import LocksService
from django_locks.values import describe_duration

CODE: dict[Level, int] = {OK: 0, WARN: 1, FAIL: 2}
CLOCKS = 1.0  # seconds between host and store from which people notice

Report = list[tuple[str, list[Finding]]]  # what was found, by alias


class Doctor(Subcommand):
    name = "doctor"
    help = "Examine the stores and the settings."
    epilog = """\
Of each store: is it reachable; how long a real acquire, renew and release take; how far its clock and this
host's are apart; of Redis: eviction, persistence, version, replicas; of a database: table and migrations,
isolation, durability, poolers, stale rows. And what the system checks say of LOCKS.

Exit codes: 0 all is well, 1 there are warnings, 2 something fails (2 wrong usage, too)

With --json, an object: status ("ok", "warn", "fail"), exit_code, settings (findings) and stores (store, findings);
a finding has level, topic, text, hint and value.

Example: manage.py locks doctor"""
    default_alias = None
    examines_settings = True

    def handle(self, services: list[LocksService], **options: Any) -> None:
        settings = list(_settings())
        report = [(service.alias, list(_examine(service))) for service in services]
        found = [*settings, *(finding for _, findings in report for finding in findings)]
        worst = max((finding.level for finding in found), key=CODE.__getitem__, default=OK)
        self._print(settings, report, found)
        self.out.json(
            {
                "status": worst,
                "exit_code": CODE[worst],
                "settings": [finding._asdict() for finding in settings],
                "stores": [{"store": a, "findings": [finding._asdict() for finding in f]} for a, f in report],
            }
        )
        sys.exit(CODE[worst])

    def _print(self, settings: list[Finding], report: Report, found: list[Finding]) -> None:
        if self.out.as_json:
            return
        for title, findings in [("Settings", settings), *((f"Store {alias!r}", f) for alias, f in report)]:
            self.out.say(title)
            wide = max(len(finding.topic) for finding in findings)
            for finding in findings:
                self._print_finding(finding, wide)
        fails, warns = (sum(finding.level == level for finding in found) for level in (FAIL, WARN))
        style = self.out.command.style
        summary, paint = "All is well.", style.SUCCESS
        if fails or warns:
            summary = ", ".join(
                f"{count} {what}{'' if count == 1 else 's'}"
                for count, what in ((fails, "failure"), (warns, "warning"))
                if count
            )
            summary, paint = f"{summary}.", style.ERROR if fails else style.WARNING
        self.out.say_styled(summary, paint)

    def _print_finding(self, finding: Finding, wide: int) -> None:
        style = self.out.command.style
        paint = {OK: style.SUCCESS, WARN: style.WARNING, FAIL: style.ERROR}[finding.level]
        self.out.say_styled(
            finding.level,
            paint,
            before="  ",
            after=f"{'':{6 - len(finding.level)}}{finding.topic:{wide}}  {finding.text}",
        )
        if finding.hint:
            self.out.say(f"{'':{8 + wide}}  → {finding.hint}")


def _settings() -> Iterator[Finding]:
    messages = [*check_locks(None), *check_deployment(None)]
    for message in messages:
        level = FAIL if message.level >= ERROR else WARN
        yield Finding(level, "LOCKS", f"({message.id}) {message.msg}", message.hint or "", message.id)
    if not messages:
        yield Finding(OK, "LOCKS", "the system checks have nothing to say")


def _examine(service: LocksService) -> Iterator[Finding]:
    try:
        entry = entries(service.alias)
        yield Finding(OK, "backend", f"{type(entry.store).__name__}, TTL {describe_duration(entry.ttl)}")
        yield from _reach(service)
    except InvalidLockStore as error:
        yield Finding(FAIL, "settings", str(error))
    except StoreUnavailable as error:
        yield Finding(FAIL, "reachable", str(error), "Is the server up? Are host, port and password right?")


def _reach(service: LocksService) -> Iterator[Finding]:
    entry = entries(service.alias)
    findings = list(entry.store.diagnose())
    yield Finding(OK, "reachable", "it answers")
    yield from findings
    if any(finding.level == FAIL and finding.topic == "table" for finding in findings):
        return
    measured = measure(entry.store, entry.prefix)
    if isinstance(measured, str):
        yield Finding(WARN if "another" in measured else FAIL, "round", measured)
        return
    yield from _latencies(measured, entry.ttl)
    yield _clock(measured)


def _latencies(measured: Measured, ttl: float) -> Iterator[Finding]:
    for verb, times in measured.latencies.items():
        p50, p99 = (round(percentile(times, share) * 1000, 2) for share in (0.5, 0.99))
        text, value = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", {"p50_ms": p50, "p99_ms": p99}
        if p99 < ttl * 1000 / 30:
            yield Finding(OK, verb, text, value=value)
        else:
            yield Finding(WARN, verb, f"{text}: slow for this TTL", "Use a longer TTL, or a faster store.", value)


def _clock(measured: Measured) -> Finding:
    apart = f"{abs(measured.ahead):.3f} s {'ahead of' if measured.ahead > 0 else 'behind'} the store's"
    text = f"this host's is {apart} (± {measured.doubt:.3f} s)"
    if abs(measured.ahead) - measured.doubt < CLOCKS:
        return Finding(OK, "clock", text, value=round(measured.ahead, 6))
    hint = "Leases don't mind, they go by the store's clock alone. Times in logs won't match: is NTP at work?"
    return Finding(WARN, "clock", text, hint, round(measured.ahead, 6))
