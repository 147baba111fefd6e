"""The page of locks, of all stores, and a page for each lock: to look at, and for those who may, to act.

It appears by itself in ``admin.site``. A project with an admin site of its own registers `BaseLeaseAdmin` there::

    my_site.register(django_locks.models.Lease, django_locks.admin.BaseLeaseAdmin)

and one whose looks come with a ``ModelAdmin`` of their own, such as django-unfold, puts both together::

    admin.site.unregister(Lease)

    @admin.register(Lease)
    class LeaseAdmin(BaseLeaseAdmin, unfold.admin.ModelAdmin):
        pass
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_locks import clock, history
from django_locks.admin_actions import ACTIONS, PRUNE, Action, PruneForm, do, fitting, prune
from django_locks.conf import entries
from django_locks.exceptions import InvalidLockStore, StoreUnavailable
from django_locks.listing import Listing, listing
from django_locks.models import Lease
from django_locks.places import Wish, key_of, name_of, place_of
from django_locks.rows import LIVE, STATES, Row
from django_locks.text import printable
from django_locks.timeline import percentiles, picture
from django_locks.values import describe_duration

if TYPE_CHECKING:
    LeaseAdminBase = admin.ModelAdmin[Lease]
else:
    LeaseAdminBase = admin.ModelAdmin

MOST_AT_ONCE = 100
LAST_RUNS = 50
LAST_ENTRIES = 5
PART = "X-Locks-Part"  # the header by which the page's script asks for what changes alone

# A lock can be freed inside a transaction of the caller on every database but SQLite.
_outside_transactions = method_decorator(transaction.non_atomic_requests)


class BaseLeaseAdmin(LeaseAdminBase):
    """Show locks to those who may view leases; break and extend for ``break_lease``, pause for ``pause_lease``."""

    list_template = "admin/django_locks/lease/list.html"
    lock_template = "admin/django_locks/lease/lock.html"
    confirmation_template = "admin/django_locks/lease/confirmation.html"
    actions = None

    class Media:
        css = {"all": ["django_locks/leases.css"]}
        js = ["django_locks/leases.js"]

    # Who may do what

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def allowed(self, request: HttpRequest) -> dict[str, Action]:
        """Return the actions that the user may do, by name."""
        return {name: action for name, action in ACTIONS.items() if _may(request, action.permission)}

    # The pages

    @_outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request)
        found = _found(request)
        context = {
            "title": gettext("Locks"),
            "found": found,
            "rows": [self._shown(row) for row in found.rows],
            "filters": _filters(request, found),
            "pages": _pages(request, found),
            "can_prune": _may(request, "break_lease"),
        }
        return self._page(request, self.list_template, context, extra_context)

    @_outside_transactions
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_view_permission(request) or request.method == "POST":
            raise PermissionDenied
        alias, stored = _named(object_id)
        place = place_of(alias)
        try:
            row = place.find(stored) if place else None
        except (StoreUnavailable, InvalidLockStore) as error:
            self.message_user(request, printable(str(error)), messages.ERROR)
            return HttpResponseRedirect(self._url("changelist"))
        if row is None or place is None:
            text = gettext("Nothing is known of the lock “%(name)s”.") % {"name": printable(stored)}
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(self._url("changelist"))
        context = {
            "title": row.name,
            "original": Shown(alias, stored),
            "row": row,
            "key": object_id,
            "waiters": place.waiters(stored),
            "local": place.store.process_local,
            "is_ours": place.service_of(stored) is not None,
            "doable": [each for each in self.allowed(request).values() if row.state in each.states],
            "log": LogEntry.objects.filter(object_id=object_id, content_type=get_content_type_for_model(Lease))
            .select_related("user")
            .order_by("-action_time")[:LAST_ENTRIES],
            "log_url": self._url("history", object_id),
            **_past(row),
        }
        return self._page(request, self.lock_template, context, extra_context)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        found = name_of(object_id)
        return None if found is None else Shown(*found)

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any], extra: Any = None) -> HttpResponse:
        request.current_app = self.admin_site.name
        partial = request.headers.get(PART) == "live"
        whole = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "has_view_permission": True,
            "as_of": timezone.localtime(clock.wall()),
            "allowed": self.allowed(request),
            "list_url": self._url("changelist"),
            "is_partial": partial,
            **context,
            **(extra or {}),
        }
        response = TemplateResponse(request, template, whole)
        response["Vary"] = PART
        return response

    def _shown(self, row: Row) -> dict[str, Any]:
        key = key_of(row.alias, row.stored)
        return {"row": row, "key": key, "url": self._url("change", key)}

    def _url(self, view: str, *arguments: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{view}"
        return reverse(name, args=arguments, current_app=self.admin_site.name)

    # What people do

    def _act(self, request: HttpRequest) -> HttpResponse:
        name = request.POST.get("action", "")
        if name == PRUNE:
            return self._prune(request)
        if name not in ACTIONS:
            raise BadRequest("action must be one of those that the page offers.")
        action = self.allowed(request).get(name)
        if action is None:
            raise PermissionDenied
        if "confirmed" not in request.POST:
            return self._ask(request, action)
        form = action.form(request.POST)
        leases = [_lease(text) for text in request.POST.getlist("lease")]
        if len(leases) > MOST_AT_ONCE:
            raise BadRequest("lease must not come that often.")
        if not form.is_valid():
            return self._confirmation(request, action, list(fitting(action, [lease[1:] for lease in leases])), form)
        for fence, alias, stored in leases:
            self._do(request, action, alias, stored, fence, form.cleaned_data)
        return HttpResponseRedirect(self._url("changelist"))

    def _do(
        self, request: HttpRequest, action: Action, alias: str, stored: str, fence: int, data: dict[str, Any]
    ) -> None:
        try:
            said = do(action, alias, stored, fence, data, request.user.get_username())
        except (StoreUnavailable, InvalidLockStore) as error:
            self.message_user(request, printable(str(error)), messages.ERROR)
            return
        if said.log:
            _log(request, alias, stored, said.log)
        self.message_user(request, said.text, said.level)

    def _ask(self, request: HttpRequest, action: Action) -> HttpResponse:
        keys = request.POST.getlist("_selected_action")
        if len(keys) > MOST_AT_ONCE:
            text = gettext("Choose at most %(most)d locks at a time.") % {"most": MOST_AT_ONCE}
            return self._back(request, text, messages.ERROR)
        chosen = [name for name in map(name_of, keys) if name is not None]
        try:
            rows = list(fitting(action, chosen))
        except (StoreUnavailable, InvalidLockStore) as error:
            return self._back(request, printable(str(error)), messages.ERROR)
        if not rows:
            states = ", ".join(str(STATES[state]) for state in action.states)
            text = gettext("Choose locks in one of these states: %(states)s. Nothing was changed.") % {"states": states}
            return self._back(request, text, messages.WARNING)
        return self._confirmation(request, action, rows, action.form())

    def _confirmation(self, request: HttpRequest, action: Action, rows: list[Row], form: forms.Form) -> HttpResponse:
        context = {
            "title": action.title,
            "action": action,
            "form": form,
            "rows": [self._shown(row) for row in rows],
            "warns": action.dangerous and any(row.live for row in rows),
        }
        return self._page(request, self.confirmation_template, context)

    def _prune(self, request: HttpRequest) -> HttpResponse:
        if not _may(request, "break_lease"):
            raise PermissionDenied
        confirmed = "confirmed" in request.POST
        form = PruneForm(request.POST) if confirmed else PruneForm()
        if not confirmed or not form.is_valid():
            action = {"name": PRUNE, "label": _("Forget old locks")}
            context = {"title": gettext("Forget old locks?"), "action": action, "form": form, "rows": []}
            return self._page(request, self.confirmation_template, context)
        try:
            forgotten = prune(form.cleaned_data["days"])
        except (StoreUnavailable, InvalidLockStore) as error:
            return self._back(request, printable(str(error)), messages.ERROR)
        text = ngettext("Forgot %(count)d lock.", "Forgot %(count)d locks.", forgotten) % {"count": forgotten}
        return self._back(request, text, messages.SUCCESS)

    def _back(self, request: HttpRequest, text: str, level: int) -> HttpResponse:
        self.message_user(request, text, level)
        return HttpResponseRedirect(self._url("changelist"))


@admin.register(Lease)
class LeaseAdmin(BaseLeaseAdmin):
    """What ``admin.site`` shows."""


class Shown:
    """What the admin's own pages link to and name in place of a lease."""

    _meta = Lease._meta

    def __init__(self, alias: str, stored: str) -> None:
        self.pk = key_of(alias, stored)
        self.alias = alias
        self.name = stored

    def __str__(self) -> str:
        return printable(self.name)


def _may(request: HttpRequest, permission: str) -> bool:
    return request.user.has_perm(f"django_locks.{permission}")


def _found(request: HttpRequest) -> Listing:
    state, alias = request.GET.get("state", ""), request.GET.get("store", "")
    if state not in ("", LIVE, *STATES) or (alias and alias not in list(entries)):
        raise BadRequest("state and store must be one of those that the page offers.")
    text = request.GET.get("q", "").strip().replace("\0", "")[:200]
    page = request.GET.get("p", "1")
    number = int(page) if page.isascii() and page.isdigit() and 0 < len(page) < 8 else 1
    return listing(Wish(text, state), alias, max(number, 1), "facets" in request.GET)


def _filters(request: HttpRequest, found: Listing) -> dict[str, Any]:
    states = {"": _("All"), LIVE: _("Live"), **STATES}
    facets = found.facets or {}
    return {
        "states": [
            (label, _query(request, state=state), state == found.wish.state, facets.get(state))
            for state, label in states.items()
        ],
        "stores": [
            (alias or _("All stores"), _query(request, store=alias), alias == found.alias) for alias in ("", *entries)
        ],
        "facets": _query(request, facets="" if found.facets is not None else "1"),
    }


def _pages(request: HttpRequest, found: Listing) -> dict[str, str]:
    pages = {}
    if found.page > 1:
        pages["previous"] = _query(request, p=str(found.page - 1))
    if found.has_next:
        pages["next"] = _query(request, p=str(found.page + 1))
    return pages


def _query(request: HttpRequest, **changes: str) -> str:
    """Return the page's query with these changes; a filter that changes begins at the first page again."""
    kept = {key: request.GET[key] for key in ("q", "state", "store", "facets", "p") if key in request.GET}
    if "p" not in changes:
        kept.pop("p", None)
    return "?" + urlencode({key: value for key, value in {**kept, **changes}.items() if value})


def _past(row: Row) -> dict[str, Any]:
    """Return what the history says of a lock."""
    ttl = entries(row.alias).ttl
    if entries(row.alias).history is None:
        return {"has_history": False}
    runs = list(history.runs(row.alias).filter(name=row.stored).order_by("-fence")[:LAST_RUNS])
    for run in runs:
        if not run.outcome and not (row.live and run.fence == row.fence):
            run.outcome = history.EXPIRED  # shown so; nothing is written by looking
    ends = percentiles(runs)
    return {
        "has_history": True,
        "runs": runs,
        "picture": picture(runs, clock.wall()),
        "percentiles": [(percent, describe_duration(value), round(value, 3)) for percent, value in ends.items()],
        "ttl_label": describe_duration(ttl),
        "ttl": ttl,
        "scale": max([ttl, *ends.values()]),
    }


def _named(key: str) -> tuple[str, str]:
    found = name_of(key)
    if found is None:
        raise Http404
    return found


def _lease(text: str) -> tuple[int, str, str]:
    fence, _colon, key = text.partition(":")
    found = name_of(key)
    if found is None or not (fence.isascii() and fence.isdigit() and len(fence) < 20):
        raise BadRequest("lease must be a fence, a colon and a key.")
    return (int(fence), *found)


def _log(request: Any, alias: str, stored: str, text: str) -> None:
    LogEntry.objects.create(
        user_id=request.user.pk,
        content_type_id=get_content_type_for_model(Lease).pk,
        object_id=key_of(alias, stored),
        object_repr=printable(stored)[:200],
        action_flag=CHANGE,
        change_message=text,
    )
