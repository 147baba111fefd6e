"""What a person may do to locks in the admin: each action's form, what it does, and what it says afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from django_locks import fencing, history
from django_locks.places import Place, place_of, places
from django_locks.rows import COOLING, FREE, HELD, PAUSED_STATE, Row
from django_locks.service import LocksService
from django_locks.text import printable
from django_locks.values import LONGEST

Text = str | Promise
REASON_LENGTH = 300


class Said(NamedTuple):
    """What came of an action on one lock: for the person, and, if anything was changed, for the admin's log."""

    level: int
    text: str
    log: str = ""


class NoForm(forms.Form):
    """Asks for nothing but a confirmation."""


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("It is kept in the history of the lock, for those who ask tomorrow."),
        max_length=REASON_LENGTH,
        required=False,
        widget=forms.TextInput(attrs={"required": True, "autocomplete": "off"}),
    )


class ExtendForm(ReasonForm):
    seconds = forms.FloatField(
        label=_("Seconds"),
        help_text=_("From now on. If its holder renews the lease, that counts anew with the holder's own TTL."),
        min_value=1,
        max_value=LONGEST,
        initial=300,
    )


class PauseForm(forms.Form):
    until = forms.DateTimeField(
        label=_("Until"),
        help_text=_("Nobody is granted the lock before that, unless it is resumed."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        initial=lambda: timezone.now() + timedelta(hours=1),
    )
    note = forms.CharField(
        label=_("Note"), help_text=_("Shown to those who are refused."), max_length=150, required=False
    )

    def clean_until(self) -> Any:
        until = self.cleaned_data["until"]
        seconds = (until - timezone.now()).total_seconds()
        if not 0 < seconds <= LONGEST:
            raise forms.ValidationError(gettext("That moment is over, or too far away."))
        self.cleaned_data["seconds"] = seconds
        return until


class PruneForm(forms.Form):
    days = forms.FloatField(
        label=_("Days"),
        help_text=_("Locks that have been free for longer than that are forgotten, with their last run."),
        min_value=0,
        max_value=3650,
        initial=30,
    )


@dataclass(frozen=True)
class Action:
    """``states``: of what locks it makes sense. Subclasses do it to one lock."""

    name: str
    label: Text
    title: Text
    permission: str
    states: tuple[str, ...]
    form: type[forms.Form] = NoForm
    warning: Text = ""
    dangerous: bool = False

    def run(self, service: LocksService, name: str, fence: int, data: dict[str, Any], user: str) -> Said:
        raise NotImplementedError


class Break(Action):
    def run(self, service: LocksService, name: str, fence: int, data: dict[str, Any], user: str) -> Said:
        label = {"name": printable(name), "fence": fence}
        if not service.force_release(name, fence=fence):
            return over(name)
        text = gettext("Broke the lease of “%(name)s”. Its holder is told when it next renews.") % label
        return Said(messages.SUCCESS, text, gettext("Broke the lease with fence %(fence)d.") % label + _because(data))


class Extend(Action):
    def run(self, service: LocksService, name: str, fence: int, data: dict[str, Any], user: str) -> Said:
        label = {"name": printable(name), "seconds": data["seconds"], "fence": fence}
        if not service.force_extend(name, data["seconds"], fence=fence):
            return over(name)
        log = gettext("Extended the lease with fence %(fence)d by %(seconds)s s.") % label + _because(data)
        return Said(messages.SUCCESS, gettext("Extended the lease of “%(name)s”.") % label, log)


class Pause(Action):
    def run(self, service: LocksService, name: str, fence: int, data: dict[str, Any], user: str) -> Said:
        until = data["until"]
        moment = timezone.localtime(until) if timezone.is_aware(until) else until
        label = {"name": printable(name), "until": f"{moment:%Y-%m-%d %H:%M %Z}".strip(), "note": data["note"]}
        if not service.pause(name, data["seconds"], note=data["note"] or user):
            text = gettext("“%(name)s” is held: it was not paused. Wait for its end, or break it first.") % label
            return Said(messages.WARNING, text)
        log = gettext("Paused it until %(until)s. %(note)s") % label
        return Said(messages.SUCCESS, gettext("“%(name)s” is paused until %(until)s.") % label, log)


class Resume(Action):
    def run(self, service: LocksService, name: str, fence: int, data: dict[str, Any], user: str) -> Said:
        label = {"name": printable(name)}
        if not service.resume(name):
            return Said(messages.WARNING, gettext("“%(name)s” is not paused any more: nothing was changed.") % label)
        return Said(messages.SUCCESS, gettext("“%(name)s” can be taken again.") % label, gettext("Resumed it."))


BREAK = Break(
    "break_lease",
    _("Break lease"),
    _("Break lease?"),
    "break_lease",
    (HELD, COOLING),
    ReasonForm,
    _(
        "A live holder may be at work under its lease, and goes on until it next renews or checks it; from the moment "
        "you break the lease, somebody else can take the lock."
    ),
    dangerous=True,
)
EXTEND = Extend("extend_lease", _("Extend lease"), _("Extend lease?"), "break_lease", (HELD,), ExtendForm)
PAUSE = Pause(
    "pause_lock",
    pgettext_lazy("action on a lock", "Pause"),
    _("Pause lock?"),
    "pause_lease",
    (FREE, COOLING, PAUSED_STATE),
    PauseForm,
)
RESUME = Resume(
    "resume_lock",
    pgettext_lazy("action on a lock", "Resume"),
    _("Resume lock?"),
    "pause_lease",
    (PAUSED_STATE,),
)
ACTIONS: dict[str, Action] = {action.name: action for action in (BREAK, EXTEND, PAUSE, RESUME)}
PRUNE = "prune_locks"


def over(name: str) -> Said:
    text = gettext("The lease of “%(name)s” that you saw is over: nothing was changed.")
    return Said(messages.WARNING, text % {"name": printable(name)})


def fitting(action: Action, chosen: Sequence[tuple[str, str]]) -> Iterator[Row]:
    """Yield those of the locks, by alias and stored name, to which the action can be done now."""
    asked: dict[str, Place | None] = {}
    for alias, stored in chosen:
        place = asked[alias] if alias in asked else asked.setdefault(alias, place_of(alias))
        row = place.find(stored) if place else None
        if row is not None and row.state in action.states:
            yield row


def do(action: Action, alias: str, stored: str, fence: int, data: dict[str, Any], user: str) -> Said:
    """Do it to a lock, if the lease is still that of the fence."""
    place = place_of(alias)
    service = place.service_of(stored) if place else None
    if service is None:
        return over(stored)
    return action.run(*service, fence, data, user)


def prune(days: float) -> int:
    """Forget the locks of all places that have been free for so long; return how many."""
    forgotten = 0
    for place in places():
        forgotten += place.store.prune(days * 86400)
        fencing.forget(place.store, days * 86400)
        for alias in place.aliases:
            history.prune(alias)
    return forgotten


def _because(data: dict[str, Any]) -> str:
    reason = printable(data.get("reason", ""))
    return " " + (gettext("Reason: %(reason)s") % {"reason": reason} if reason else gettext("No reason was given."))
