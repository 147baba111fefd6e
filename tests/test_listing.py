"""Which locks of which stores are on a page of the admin, and what becomes of it when one of them fails."""

from __future__ import annotations

import uuid

import pytest
from django.db import connections

from django_locks import history, listing, locks
from django_locks.conf import entries
from django_locks.listing import Wish
from django_locks.places import Place
from tests.conftest import DATABASE, MEMORY


@pytest.fixture
def alias(connect):
    return connect("sqlite")


def memory(**entry):
    return {"BACKEND": MEMORY, "LOCATION": uuid.uuid4().hex, **entry}


def names(found):
    return [row.stored for row in found.rows]


def test_one_entry_of_a_shared_table_shows_the_names_of_its_prefix(alias, settings):
    table = {"BACKEND": DATABASE, "LOCATION": alias}
    settings.LOCKS = {"default": table, "other": {**table, "KEY_PREFIX": "prod"}}
    for service in (locks, locks.using("other")):
        service.acquire("job").release()
    assert names(listing.listing(Wish())) == ["job", "prod:job"]
    found = listing.listing(Wish(), "other", facets=True)
    assert (names(found), found.facets["free"]) == (["prod:job"], 1)


def test_free_locks_of_all_stores_follow_each_other_over_the_pages(alias, settings, monkeypatch):
    monkeypatch.setattr(listing, "SIZE", 2)
    monkeypatch.setattr(history, "database_of", lambda _: alias)
    settings.LOCKS = {"default": memory(HISTORY=3600), "table": {"BACKEND": DATABASE, "LOCATION": alias}}
    for name in ("a", "b"):
        locks.acquire(name).release()
    for name in ("c", "d", "e"):
        locks.using("table").acquire(name).release()
    assert history.flush()
    pages = [listing.listing(Wish(state="free"), page=number) for number in (1, 2, 3)]
    assert [sorted(names(found)) for found in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert [found.has_next for found in pages] == [True, True, False]


def test_free_locks_are_not_among_the_live_ones_of_a_store_in_memory(settings):
    settings.LOCKS = {"default": memory()}
    with locks.lock("busy"):
        assert names(listing.listing(Wish())) == ["busy"]
        assert names(listing.listing(Wish(state="free"))) == []


def test_missing_table_is_named_with_what_to_do(connect, settings, tmp_path):
    bare = connect("sqlite", "bare", migrate=False, NAME=str(tmp_path / "bare.sqlite3"))
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": bare}}
    found = listing.listing(Wish())
    assert (found.rows, found.reachable) == ([], 0)
    assert "manage.py migrate" in found.faults["default"]


def test_store_that_fails_while_it_is_counted_is_left_out_of_the_sums(settings, monkeypatch):
    def facets(place, wish):
        if place.alias == "weak":
            raise place.store.unavailable("list", "", "connection reset")
        return counted(place, wish)

    counted = Place.facets
    monkeypatch.setattr(Place, "facets", facets)
    settings.LOCKS = {"default": memory(), "weak": memory()}
    with locks.lock("a"), locks.using("weak").lock("b"):
        found = listing.listing(Wish(), facets=True)
    assert names(found) == ["a", "b"]
    assert found.facets == {"live": 1, "held": 1, "cooling": 0, "paused": 0, "free": 0}
    assert "connection reset" in found.faults["weak"]


def test_page_is_shown_without_the_last_day_while_the_history_has_no_table(connect, settings, tmp_path):
    alias = connect("sqlite", "old", migrate=False, NAME=str(tmp_path / "old.sqlite3"))
    settings.LOCKS = {"default": {"BACKEND": DATABASE, "LOCATION": alias, "HISTORY": 3600}}
    entries("default").store.prepare()
    with connections[alias].cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS django_locks_run")
    locks.acquire("job").release()
    found = listing.listing(Wish())
    assert (names(found), found.day) == (["job"], None)
