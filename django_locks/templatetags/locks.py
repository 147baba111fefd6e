"""What the templates of the admin's pages need."""

from __future__ import annotations

from django import template

from django_locks.rows import outcome_label, spoken
from django_locks.text import printable

register = template.Library()
register.filter("printable", printable)
register.filter("spoken", spoken)


@register.simple_tag
def runs_end(outcome: str, error: str = "") -> str:
    """Return how a run ended, for people."""
    return outcome_label(outcome, error)
