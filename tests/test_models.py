"""The table, its columns' kinds, and its migration."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django import forms
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connections, models
from django.db.migrations.loader import MigrationLoader
from django.test.utils import override_settings

from django_locks.instants import LAST, from_micros, to_micros
from django_locks.models import Fence, InstantField, Lease, Run, Skips
from tests.servers.fixtures_databases import Connect

MOMENT = datetime(2026, 3, 29, 1, 59, 59, 123457, tzinfo=UTC)
NEW_YORK = ZoneInfo("America/New_York")


class OwnAutoField(models.BigAutoField):
    """A project's own."""


def lease(**changes: Any) -> Lease:
    return Lease(**{"name": "job", "fence": 1, "acquired_at": MOMENT, "expires_at": MOMENT, **changes})


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize(
    "auto_field",
    [
        "django.db.models.AutoField",
        "django.db.models.BigAutoField",
        "django.db.models.SmallAutoField",
        "tests.test_models.OwnAutoField",
    ],
)
def test_migrations_are_complete(auto_field: str, use_tz: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MigrationLoader, "check_consistent_history", lambda *_: None)  # it asks the database
    settings = {"DEFAULT_AUTO_FIELD": auto_field, "USE_TZ": use_tz}
    with override_settings(**settings, DEFAULT_TABLESPACE="fast"):
        call_command("makemigrations", "django_locks", check=True, dry_run=True, stdout=StringIO())


@pytest.mark.parametrize("micros", [0, 1, -1, 1_774_749_599_123_457, 2**52, LAST])
def test_instants_are_exact_both_ways(micros: int) -> None:
    assert to_micros(from_micros(micros)) == micros
    assert from_micros(micros).tzinfo is UTC


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_moment_is_the_same_on_every_database(kind: str, use_tz: bool, connect: Connect) -> None:
    with override_settings(USE_TZ=use_tz, TIME_ZONE="America/New_York"):
        leases = Lease.objects.using(connect(kind))
        leases.create(**{key: value for key, value in vars(lease()).items() if key != "_state"})
        found = leases.get(expires_at=MOMENT.astimezone(NEW_YORK), released_at=None)
        assert (found.expires_at, found.expires_at.tzinfo, found.released_at) == (MOMENT, UTC, None)
        assert leases.filter(expires_at__gt=MOMENT - timedelta(microseconds=1), expires_at__lte=MOMENT).count() == 1
        assert leases.filter(expires_at__in=[MOMENT], acquired_at__range=(MOMENT, MOMENT)).count() == 1
        assert leases.filter(expires_at__lt=MOMENT).count() == 0
        naive = datetime(2026, 1, 1)
        leases.update(released_at=naive)
        assert leases.get().released_at == naive.replace(tzinfo=NEW_YORK)


def test_column_takes_moments_and_nothing_else() -> None:
    field = Lease._meta.get_field("expires_at")
    assert field.to_python(to_micros(MOMENT)) == MOMENT
    assert field.to_python(MOMENT.isoformat()) == MOMENT
    for wrong in ("soon", "2026-02-30 00:00", date(2026, 1, 1), True, 1.5):
        with pytest.raises(ValidationError, match="not a date and time"):
            field.to_python(wrong)


def test_moment_survives_validation_forms_and_deconstruction() -> None:
    lease(holder="me").full_clean(validate_unique=False)
    field = Lease._meta.get_field("expires_at")
    assert isinstance(field.formfield(), forms.DateTimeField)
    _, path, arguments, options = InstantField(null=True).deconstruct()
    assert (path, arguments, options) == ("django_locks.models.InstantField", [], {"null": True})


# Django's JSON keeps milliseconds of any datetime.
@pytest.mark.parametrize(("form", "moment"), [("json", MOMENT.replace(microsecond=123000)), ("xml", MOMENT)])
def test_rows_survive_dumpdata_and_loaddata(form: str, moment: datetime, connect: Connect, tmp_path: Any) -> None:
    alias = connect("sqlite")
    lease(holder="me", expires_at=moment).save(using=alias)
    dump = tmp_path / f"leases.{form}"
    call_command("dumpdata", "django_locks", database=alias, format=form, output=str(dump))
    Lease.objects.using(alias).delete()
    call_command("loaddata", str(dump), database=alias, verbosity=0)
    loaded = Lease.objects.using(alias).get()
    assert (loaded.expires_at, loaded.released_at, loaded.holder) == (moment, None, "me")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_name_is_a_key_that_tells_case_and_accents_apart(kind: str, connect: Connect) -> None:
    alias = connect(kind)
    for name in ("job", "JOB", "jöb"):
        lease(name=name).save(using=alias, force_insert=True)
    with pytest.raises(IntegrityError):
        lease().save(using=alias, force_insert=True)
    assert Lease.objects.using(alias).filter(name="job").count() == 1


@pytest.mark.parametrize(("kind", "collation"), [("postgresql", "C"), ("mariadb", "utf8mb4_bin")])
def test_only_the_name_is_indexed(kind: str, collation: str, connect: Connect) -> None:
    connection = connections[connect(kind)]
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, Lease._meta.db_table)
        columns = connection.introspection.get_table_description(cursor, Lease._meta.db_table)
    indexes = [c["columns"] for c in constraints.values() if c["index"] or c["unique"]]
    assert indexes == [["name"]]
    assert {column.name: column.collation for column in columns}["name"] == collation


def test_permissions_are_to_view_to_break_and_to_pause() -> None:
    assert Lease._meta.default_permissions == ("view",)
    assert Lease._meta.permissions == [("break_lease", "Can break a lease"), ("pause_lease", "Can pause a lock")]
    assert str(lease()) == "job"


def test_rows_are_called_by_their_printable_name() -> None:
    name = "a\u202eb"
    rows = [Fence(name=name, fence=1), Run(name=name, fence=7), Skips(name=name, count=3)]
    assert [str(row) for row in rows] == ["a\\u202eb", "a\\u202eb (7)", "a\\u202eb: 3"]


@pytest.mark.parametrize(("rival", "raised"), [(7, True), (8, True), (9, False)])
def test_fence_that_another_makes_meanwhile_is_raised_like_one_that_was_there(
    rival: int, raised: bool, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_too_late(alias: str, name: str, fence: int) -> bool:
        Fence.objects.using(alias).create(name=name, fence=rival)
        return create(alias, name, fence)

    alias, create = connect("sqlite"), Fence._create
    Fence.objects.using(alias).all().delete()
    monkeypatch.setattr(Fence, "_create", create_too_late)
    assert Fence.raise_to(alias, "job", 8) is raised
    assert Fence.objects.using(alias).get().fence == max(rival, 8)
