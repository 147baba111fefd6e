"""The leases of the database store, to look at and to break.

With several database stores in ``LOCKS`` it is the database of the first one; Redis and memory have no rows to show.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.models import Lease
from django_locks.rows import STATES, Row, in_state, key_of, name_of, rows, service_of, source
from django_locks.text import printable

if TYPE_CHECKING:
    LeaseAdminBase = admin.ModelAdmin[Lease]
else:
    LeaseAdminBase = admin.ModelAdmin

COLUMNS = ("lock", "state", "holder_label", "held_for", "remaining", "last_run", "took", "fence")
MOST_AT_ONCE = 100
NOTHING = "–"  # noqa: RUF001


def _now(request: Any) -> datetime:
    """Return the database server's time, read once a request."""
    if not hasattr(request, "_locks_now"):
        store = source()
        assert store is not None, "without a store nobody has the permission to come here"  # noqa: S101
        request._locks_now = store.clock()
    now: datetime = request._locks_now
    return now


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return list(STATES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = self.value()
        return queryset.filter(in_state(state, _now(request))) if state in STATES else queryset


class LeaseList(ChangeList):
    def url_for_result(self, result: Any) -> str:
        return _url("change", result.name)


@admin.register(Lease)
class LeaseAdmin(LeaseAdminBase):
    """Show leases to those who may view them, and break them for those who may ``break_lease``; nothing else."""

    list_display = COLUMNS
    list_filter = [StateFilter]
    search_fields = ["name", "holder"]
    fields = (*COLUMNS, "acquired", "expires")
    readonly_fields = fields
    ordering = ["name"]
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = ["break_lease"]

    @admin.display(description=_("lock"), ordering="name")
    def lock(self, lease: Any) -> str:
        return _isolated(lease.name)

    @admin.display(description=_("state"))
    def state(self, lease: Any) -> str:
        return Row(lease).label

    @admin.display(description=_("holder"), ordering="holder")
    def holder_label(self, lease: Any) -> str:
        return _isolated(lease.holder)

    @admin.display(description=_("held for"), ordering="acquired_at")
    def held_for(self, lease: Any) -> str:
        return Row(lease).age or NOTHING

    @admin.display(description=_("remaining"), ordering="expires_at")
    def remaining(self, lease: Any) -> str:
        return Row(lease).remaining or NOTHING

    @admin.display(description=_("last run"))
    def last_run(self, lease: Any) -> str:
        return Row(lease).last_run or NOTHING

    @admin.display(description=_("took"))
    def took(self, lease: Any) -> str:
        return Row(lease).took or NOTHING

    @admin.display(description=_("acquired at"))
    def acquired(self, lease: Any) -> str:
        return _moment(lease.acquired_at)

    @admin.display(description=_("expires at"))
    def expires(self, lease: Any) -> str:
        return _moment(lease.expires_at)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return source() is not None and super().has_view_permission(request, obj)

    def has_break_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_locks.break_lease")

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return lookup == StateFilter.parameter_name  # any other could find out the owner, letter by letter

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LeaseList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        store = source()
        if store is None:
            return super().get_queryset(request).none()
        return rows(store, _now(request)).order_by(*self.ordering)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        name = name_of(object_id)
        return None if name is None else self.get_queryset(request).filter(name=name).first()

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.POST.get("action") == "break_lease" and not self.has_break_permission(request):
            raise PermissionDenied
        return self._or_message(request, lambda: super(LeaseAdmin, self).changelist_view(request, extra_context))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        def view() -> HttpResponse:
            context = {**self._detail(request, object_id), **(extra_context or {})}
            return super(LeaseAdmin, self).change_view(request, object_id, form_url, context)

        return self._or_message(request, view)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        context = {"object": Shown(name_of(object_id) or ""), **(extra_context or {})}
        return self._or_message(request, lambda: super(LeaseAdmin, self).history_view(request, object_id, context))

    def _detail(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        lease = self.get_object(request, object_id)
        breakable = lease is not None and Row(lease).live and self.has_break_permission(request)
        return {"original": Shown(name_of(object_id) or ""), "breakable": breakable, "changelist_url": _list_url()}

    def _or_message(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        try:
            return view()
        except (StoreUnavailable, InvalidLockStore) as error:
            self.message_user(request, printable(str(error)), messages.ERROR)
            return HttpResponseRedirect(reverse("admin:index"))

    @admin.action(description=_("Break lease"), permissions=["break"])
    def break_lease(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        if "confirmed" in request.POST:
            self._break(request, [_parsed(lease) for lease in request.POST.getlist("lease")])
            return None
        leases = [row for row in map(Row, queryset[: MOST_AT_ONCE + 1]) if row.live]
        if len(leases) > MOST_AT_ONCE:
            text = gettext("Choose at most %(most)d leases at a time.") % {"most": MOST_AT_ONCE}
            self.message_user(request, text, messages.ERROR)
            return None
        if not leases:
            self.message_user(request, gettext("None of these locks is held: nothing was changed."), messages.WARNING)
            return None
        return self._confirmation(request, leases)

    def _confirmation(self, request: HttpRequest, leases: list[Row]) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": ngettext("Break this lease?", "Break these leases?", len(leases)),
            "opts": self.opts,
            "media": self.media,
            "leases": leases,
            "changelist_url": _list_url(),
        }
        return TemplateResponse(request, "admin/django_locks/lease/break_confirmation.html", context)

    def _break(self, request: HttpRequest, leases: list[tuple[int, str]]) -> None:
        for fence, name in leases:
            service = service_of(name)
            label = {"name": printable(name), "fence": fence}
            if service is not None and service[0].force_release(service[1], fence=fence):
                _log(request, name, gettext("Broke the lease with fence %(fence)d.") % label)
                text = gettext("Broke the lease of “%(name)s”. Its holder is told when it next renews.") % label
                self.message_user(request, text, messages.SUCCESS)
            else:
                text = gettext("The lease of “%(name)s” that you saw is over: nothing was changed.") % label
                self.message_user(request, text, messages.WARNING)


class Shown:
    """What the admin's pages link to and name in place of a lease."""

    def __init__(self, name: str) -> None:
        self.pk = key_of(name)
        self.name = name

    def __str__(self) -> str:
        return printable(self.name)


def _parsed(lease: str) -> tuple[int, str]:
    fence, _colon, name = lease.partition(":")
    if not (fence.isascii() and fence.isdigit() and len(fence) < 20 and name):
        raise BadRequest("lease must be a fence, a colon and a name.")
    return int(fence), name


def _log(request: Any, name: str, text: str) -> None:
    LogEntry.objects.create(
        user_id=request.user.pk,
        content_type_id=get_content_type_for_model(Lease).pk,
        object_id=key_of(name),
        object_repr=printable(name)[:200],
        action_flag=CHANGE,
        change_message=text,
    )


def _url(view: str, name: str) -> str:
    return reverse(f"admin:django_locks_lease_{view}", args=[key_of(name)])


def _list_url() -> str:
    return reverse("admin:django_locks_lease_changelist")


def _isolated(text: str) -> str:
    return format_html("<bdi>{}</bdi>", printable(text))


def _moment(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M:%S %Z}"
