"""The setting ``LOCKS``: from what a project wrote to stores and services by alias."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .exceptions import InvalidLockStore, LockStoreDoesNotExist
from .options import LockSettings
from .service import LocksService
from .stores.base import BaseStore
from .text import without_passwords
from .values import PREFIX_LENGTH, clean_duration, clean_holder, clean_name, default_holder

DEFAULTS: dict[str, Any] = {
    "BACKEND": "django_locks.stores.database.DatabaseStore",
    "LOCATION": None,
    "TTL": 30,
    "RENEW": True,
    "KEY_PREFIX": "",
    "HOLDER": None,
    "HISTORY": None,
    "OPTIONS": {},
}


class Problem(NamedTuple):
    """A fault of the setting, and the way out."""

    id: str
    message: str
    hint: str
    alias: str = ""

    def error(self) -> InvalidLockStore:
        return InvalidLockStore(f"{self.message} {self.hint}", alias=self.alias)


class Handler:
    """The entries of ``LOCKS`` by alias, each built at its first use and again when the setting has changed."""

    def __init__(self) -> None:
        self._entries: dict[str, LockSettings] = {}
        setting_changed.connect(self._setting_changed)

    def __call__(self, alias: str) -> LockSettings:
        entry = self._entries.get(alias)
        if entry is None:
            entry = self._entries.setdefault(alias, _build_in_secret(alias))
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(configured())

    def close(self) -> None:
        """Give back the connections of all stores."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.store.close()

    def _setting_changed(self, *, setting: str, **kwargs: Any) -> None:
        if setting in {"LOCKS", "DATABASES", "INSTALLED_APPS"}:
            self.close()


def configured() -> Mapping[str, Any]:
    """Return the setting ``LOCKS`` as it stands, which may be wrong in any way; without one, the database store."""
    locks: Mapping[str, Any] = getattr(settings, "LOCKS", {"default": DEFAULTS})
    return locks


def problems() -> Iterator[Problem]:
    """Yield what is wrong with the setting, without connecting to anything."""
    locks = configured()
    if not isinstance(locks, Mapping):
        yield Problem(
            "E001",
            f"LOCKS must be a dict of stores by alias, not {without_passwords(repr(locks))}.",
            'For example: LOCKS = {"default": {"BACKEND": "django_locks.stores.database.DatabaseStore"}}.',
        )
        return
    if "default" not in locks:
        yield Problem("E001", "LOCKS has no 'default'.", "Name the store that `locks` uses 'default'.", "default")
    for alias in locks:
        yield from _problems_of(alias, locks[alias])


def _problems_of(alias: Any, entry: Any) -> Iterator[Problem]:
    if not isinstance(alias, str) or not isinstance(entry, Mapping):
        yield Problem(
            "E001",
            f"LOCKS[{alias!r}] must be a dict, under an alias that is text; it is {without_passwords(repr(entry))}.",
            f"Its keys: {', '.join(DEFAULTS)}.",
            str(alias),
        )
        return
    for test in (_wrong_keys, _wrong_prefix, _wrong_ttl, _wrong_renew, _wrong_holder, _wrong_history, _wrong_store):
        yield from (Problem(problem.id, problem.message, problem.hint, alias) for problem in test(alias, entry))


def _wrong_keys(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    for key in entry:
        if key not in DEFAULTS:
            yield Problem("E001", f"LOCKS[{alias!r}] has an unknown key {key!r}.", _did_you_mean(key, DEFAULTS))


def _wrong_prefix(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    prefix = entry.get("KEY_PREFIX", "")
    what = f"LOCKS[{alias!r}]['KEY_PREFIX']"
    try:
        fine = prefix == "" or (len(clean_name(prefix)) <= PREFIX_LENGTH and ":" not in prefix)
    except (TypeError, ValueError):
        fine = False
    if not fine:
        yield Problem(
            "E001",
            f"{what} is {prefix!r}.",
            f"A prefix is text of at most {PREFIX_LENGTH} characters without ':', which ends it in the stored name.",
        )


def _wrong_ttl(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    try:
        clean_duration(entry.get("TTL", DEFAULTS["TTL"]), f"LOCKS[{alias!r}]['TTL']")
    except (TypeError, ValueError) as error:
        yield Problem("E004", str(error), "Use seconds or a timedelta, such as 30.")


def _wrong_renew(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    renew = entry.get("RENEW", True)
    if not isinstance(renew, bool):
        yield Problem("E001", f"LOCKS[{alias!r}]['RENEW'] is {renew!r}.", "Use True or False.")


def _wrong_holder(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    holder = entry.get("HOLDER")
    what = f"LOCKS[{alias!r}]['HOLDER'] is {holder!r}"
    hint = "Use a label, the dotted path of a callable that returns one, or None for host:pid:thread."
    if not (holder is None or callable(holder) or (isinstance(holder, str) and holder)):
        yield Problem("E001", f"{what}.", hint)
    elif isinstance(holder, str):
        try:
            _import_callable(holder)
        except Exception as error:  # whatever the module does when it is imported
            yield Problem("E001", f"{what}, which cannot be imported: {error}.", hint)


def _wrong_history(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    kept = entry.get("HISTORY")
    if kept is None:
        return
    try:
        clean_duration(kept, f"LOCKS[{alias!r}]['HISTORY']")
    except (TypeError, ValueError) as error:
        yield Problem("E004", str(error), "Use a timedelta, such as timedelta(days=30), or None for no history.")
        return
    if not apps.is_installed("django_locks"):
        yield Problem(
            "E005",
            f"LOCKS[{alias!r}]['HISTORY'] is set, but 'django_locks' is not in INSTALLED_APPS.",
            "Add it there and run `manage.py migrate`: the history is a table.",
        )


def _wrong_store(alias: str, entry: Mapping[Any, Any]) -> Iterator[Problem]:
    backend = entry.get("BACKEND")
    where = f"LOCKS[{alias!r}]['BACKEND']"
    if not isinstance(backend, str):
        yield Problem(
            "E002",
            f"{where} is {without_passwords(repr(backend))}.",
            f"Use a dotted path, such as '{DEFAULTS['BACKEND']}'.",
        )
        return
    what = without_passwords(repr(backend))
    try:
        store_class = import_string(backend)
    except Exception as error:  # whatever the module does when it is imported
        yield Problem(
            "E002",
            f"{where} is {what}, which cannot be imported: {without_passwords(str(error))}.",
            "Check the dotted path.",
        )
        return
    if not (isinstance(store_class, type) and issubclass(store_class, BaseStore)):
        yield Problem("E002", f"{where} is {what}, which is no lock store.", "Name a subclass of BaseStore.")
        return
    yield from _wrong_options(alias, store_class, entry)


def _wrong_options(alias: str, store_class: type[BaseStore], entry: Mapping[Any, Any]) -> Iterator[Problem]:
    options = entry.get("OPTIONS", {})
    where = f"LOCKS[{alias!r}]['OPTIONS']"
    if not isinstance(options, Mapping):
        yield Problem(
            "E003",
            f"{where} must be a dict, not {without_passwords(repr(options))}.",
            "Its keys are lower-case keyword arguments.",
        )
        return
    known = _option_names(store_class)
    for option in options:
        if known is not None and option not in known:
            yield Problem("E003", f"{where} has an unknown option {option!r}.", _did_you_mean(option, known))


def _option_names(store_class: type[BaseStore]) -> list[str] | None:
    """Return the names of the options, or ``None`` if the store takes any and looks at them itself."""
    parameters = inspect.signature(store_class).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _did_you_mean(key: Any, known: Any) -> str:
    close = difflib.get_close_matches(str(key), known, n=1)
    if not close and isinstance(key, str):
        close = [name for name in known if name.lower() == key.lower()]
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(known)}." if known else "It takes none."


def _build_in_secret(alias: str) -> LockSettings:
    """Build it, and keep the variables out of error reports: a URL may have a password."""
    from django.views.decorators.debug import sensitive_variables  # brings all of django.http with it

    built: LockSettings = sensitive_variables()(_build)(alias)
    return built


def _build(alias: str) -> LockSettings:
    locks = configured()
    for problem in problems() if not isinstance(locks, Mapping) else _problems_of_use(alias, locks):
        raise problem.error()
    entry = {**DEFAULTS, **locks[alias]}
    prefix = clean_name(entry["KEY_PREFIX"]) if entry["KEY_PREFIX"] else ""
    return LockSettings(
        store=build_store(alias),
        ttl=clean_duration(entry["TTL"], "TTL"),
        renew=entry["RENEW"],
        prefix=f"{prefix}:" if prefix else "",
        holder=_holder(alias, entry["HOLDER"]),
        history=None if entry["HISTORY"] is None else clean_duration(entry["HISTORY"], "HISTORY"),
    )


def _problems_of_use(alias: str, locks: Mapping[str, Any]) -> Iterator[Problem]:
    if alias not in locks:
        known = ", ".join(map(repr, locks)) or "none"
        raise LockStoreDoesNotExist(f"LOCKS has no {alias!r}. It has: {known}.", alias=alias)
    yield from _problems_of(alias, locks[alias])


def build_store(alias: str) -> BaseStore:
    """Return a new store of the entry. Raises `InvalidLockStore` if its options or location cannot be used."""
    entry = {**DEFAULTS, **configured()[alias]}
    store_class = import_string(entry["BACKEND"])
    try:
        store: BaseStore = store_class(alias, entry["LOCATION"], entry["KEY_PREFIX"], **entry["OPTIONS"])
    except ImproperlyConfigured:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidLockStore(
            f"LOCKS[{alias!r}]: {store_class.__name__} does not take these OPTIONS or this LOCATION: {error}",
            alias=alias,
        ) from error
    return store


def _holder(alias: str, holder: Any) -> Callable[[], str]:
    if holder is None:
        return lambda: clean_holder(default_holder())
    call = holder if callable(holder) else _import_callable(holder)
    if call is None:
        label = clean_holder(holder)
        return lambda: label
    return functools.partial(_call_holder, alias, call)


def _import_callable(path: str) -> Callable[[], Any] | None:
    """Return what the path names, or ``None``: it is a label, such as a host's name."""
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if callable(found) else None


def _call_holder(alias: str, call: Callable[[], Any]) -> str:
    label = call()
    if not isinstance(label, str) or not label:
        raise InvalidLockStore(f"LOCKS[{alias!r}]['HOLDER'] returned {label!r}; it must return text.", alias=alias)
    return clean_holder(label)


entries = Handler()
locks = LocksService("default", entries)
with_lock = locks.with_lock
