"""The table of the database store, and the two kinds of column that it needs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connections, models, transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _

from django_locks import clock
from django_locks.instants import from_micros, to_micros
from django_locks.text import printable
from django_locks.values import HOLDER_LENGTH, TEMPLATE_LENGTH

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    InstantBase = models.Field[Any, Any]  # None or not is said by each column
    TextBase = models.CharField[str, str]
else:
    InstantBase, TextBase = models.Field, models.CharField


class InstantField(InstantBase):
    """Keep a moment as microseconds since the epoch in a BIGINT column; an aware UTC datetime in Python.

    A date column means another moment whenever USE_TZ, TIME_ZONE or the session's time zone changes, and an hour too
    many or too few when daylight saving time does. This one means the same moment to every process and every database.
    A naive datetime is taken in the default time zone.
    """

    description = _("Moment")
    default_error_messages = {"invalid": _("“%(value)s” is not a date and time.")}

    def get_internal_type(self) -> str:
        return "BigIntegerField"

    def from_db_value(self, value: int | None, expression: Any, connection: Any) -> datetime | None:
        return None if value is None else from_micros(value)

    def to_python(self, value: Any) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return from_micros(value)
        moment = _parsed(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            raise ValidationError(self.error_messages["invalid"], code="invalid", params={"value": value})
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment, timezone.get_default_timezone())
        return moment.astimezone(UTC)

    def get_prep_value(self, value: Any) -> int | None:
        moment = self.to_python(super().get_prep_value(value))
        return None if moment is None else to_micros(moment)

    def value_to_string(self, obj: models.Model) -> str:
        moment = self.to_python(self.value_from_object(obj))
        return "" if moment is None else moment.isoformat()

    def formfield(self, *args: Any, **kwargs: Any) -> Any:
        return super().formfield(*args, **{"form_class": forms.DateTimeField, **kwargs})


def _parsed(text: str) -> datetime | None:
    try:
        return parse_datetime(text)
    except ValueError:  # well formed, but no such date
        return None


class NameField(TextBase):
    """Keep text that is compared byte by byte, whatever the database's default is.

    MySQL's default collations hold ``job`` and ``JOB`` for one name, and its default character set may not even hold
    every character.
    """

    collations = {"postgresql": "C", "mysql": "utf8mb4_bin"}

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        if connection.vendor == "postgresql":
            # The same type under its long name: for "varchar" Django makes a second index, for LIKE.
            return f"character varying({self.max_length})"
        return super().db_type(connection)

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        return {**parameters, "collation": self.collations.get(connection.vendor, self.db_collation)}


class Fence(models.Model):
    """The highest fence that has begun a `LockGuard.atomic` here, a row a name.

    For leases kept in another place, and for transactions that do not see what is committed meanwhile. Whoever misses
    his row at the end of one rolls back.
    """

    name = NameField(_("name"), max_length=255, primary_key=True)
    fence = models.BigIntegerField(_("fence"))

    class Meta:
        verbose_name = _("fence")
        verbose_name_plural = _("fences")
        default_permissions = ()

    def __str__(self) -> str:
        return printable(self.name)

    @classmethod
    def raise_to(cls, alias: str, name: str, fence: int, *, create: bool = True) -> bool:
        """Raise the row to the fence in a commit of its own, or return False if it is higher.

        One that is there already is not written: another transaction of the same holder may rely on it. Without
        ``create``, where there is none, none is needed.
        """
        row = cls._default_manager.using(alias).filter(name=name)
        current = row.values_list("fence", flat=True).first()
        if current is None:
            return not create or cls._create(alias, name, fence) or cls.raise_to(alias, name, fence)
        if current < fence:
            return bool(row.filter(fence__lt=fence).update(fence=fence)) or cls.raise_to(alias, name, fence)
        return current == fence

    @classmethod
    def forgettable(cls, alias: str, older_than: float) -> models.QuerySet[Fence]:
        """Return the rows of grants from before so many seconds. A fence is its server's clock, in microseconds."""
        return cls._default_manager.using(alias).filter(fence__lt=(clock.epoch() - older_than) * 1_000_000)

    @classmethod
    def _create(cls, alias: str, name: str, fence: int) -> bool:
        try:
            with transaction.atomic(using=alias):
                cls._default_manager.using(alias).create(name=name, fence=fence)
        except IntegrityError:
            return False
        return True

    @classmethod
    def hold(cls, alias: str, name: str, fence: int) -> bool:
        """Lock the row until the end of the open transaction; return whether it is still at the fence."""
        row = cls._default_manager.using(alias).filter(name=name, fence=fence)
        if connections[alias].features.has_select_for_update:
            return bool(list(row.select_for_update().values_list("fence")))
        return bool(row.update(fence=fence))


class Lease(models.Model):
    """One row a name, which stays when its lease ends: the fence goes on from it, and people see who ran last.

    No column but the name is indexed: an index on one that a renewal writes would cost PostgreSQL its HOT updates.
    """

    name = NameField(_("name"), max_length=255, primary_key=True)
    owner = models.CharField(_("owner"), max_length=32, blank=True, default="", editable=False)
    holder = NameField(_("holder"), max_length=HOLDER_LENGTH, blank=True)
    fence = models.BigIntegerField(_("fence"))
    acquired_at = InstantField(_("acquired at"))
    expires_at = InstantField(_("expires at"))
    renewed_at = InstantField(_("renewed at"), null=True, blank=True)  # may be of an earlier hold
    released_at = InstantField(_("released at"), null=True, blank=True)
    outcome = models.CharField(_("outcome"), max_length=16, blank=True, default="")

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        default_permissions = ("view",)
        permissions = [("break_lease", "Can break a lease"), ("pause_lease", "Can pause a lock")]

    def __str__(self) -> str:
        return printable(self.name)


class Run(models.Model):
    """One hold of a lock, kept for as long as ``HISTORY`` of ``LOCKS`` says. Moments are by the holder's clock.

    ``outcome`` is empty until the end is known: ``released``; ``failed``, by an exception of the class ``error``;
    ``lost``, as its holder was told; ``broken`` by a person; or ``expired``: never given back, which the next holder
    noticed at ``ended``.
    """

    name = NameField(_("name"), max_length=255)  # as it is stored, with the prefix
    store = models.CharField(_("store"), max_length=100)
    holder = NameField(_("holder"), max_length=HOLDER_LENGTH, blank=True)
    fence = models.BigIntegerField(_("fence"))
    started = InstantField(_("started"))
    ended = InstantField(_("ended"), null=True, blank=True)
    template = NameField(_("template"), max_length=TEMPLATE_LENGTH, blank=True, default="")
    waited = models.FloatField(_("waited"), default=0.0)  # seconds from the call to the grant
    outcome = models.CharField(_("outcome"), max_length=16, blank=True, default="")
    error = models.CharField(_("error"), max_length=200, blank=True, default="")

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        default_permissions = ()
        indexes = [
            models.Index(fields=["name", "store", "fence"], name="django_locks_run_of"),
            models.Index(fields=["ended"], name="django_locks_run_ended"),
            models.Index(fields=["store", "template", "ended"], name="django_locks_run_template"),
        ]

    def __str__(self) -> str:
        return f"{printable(self.name)} ({self.fence})"

    @property
    def duration(self) -> float | None:
        """Seconds from the start to the end, or ``None`` while that is not known."""
        return None if self.ended is None else float((self.ended - self.started).total_seconds())


class Skips(models.Model):
    """How often a decorated call was not run in one hour, since somebody else held the lock: a row a lock and hour."""

    name = NameField(_("name"), max_length=255)
    store = models.CharField(_("store"), max_length=100)
    hour = InstantField(_("hour"))
    count = models.BigIntegerField(_("count"))
    template = NameField(_("template"), max_length=TEMPLATE_LENGTH, blank=True, default="")

    class Meta:
        verbose_name = _("skips")
        verbose_name_plural = _("skips")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["hour", "store", "name"], name="django_locks_skips_of")]

    def __str__(self) -> str:
        return f"{printable(self.name)}: {self.count}"
