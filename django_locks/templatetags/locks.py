"""What the templates of the admin's pages need."""

from __future__ import annotations

from typing import Any

import django
from django import template
from django.forms import Media

from django_locks.rows import outcome_label, spoken
from django_locks.text import printable

register = template.Library()
register.filter("printable", printable)
register.filter("spoken", spoken)


@register.inclusion_tag("admin/django_locks/lease/breadcrumbs.html")
def breadcrumbs(title: str, list_url: str = "") -> dict[str, Any]:
    """Show the way to a page as Django does: by a list from 6.1 on, whose style sheet knows nothing else."""
    return {"title": title, "list_url": list_url, "as_list": django.VERSION >= (6, 1)}


@register.simple_tag(takes_context=True)
def with_nonce(context: template.Context, media: Media) -> str:
    """Return the tags of scripts and style sheets; from Django 6.1 on with the nonce of a Content-Security-Policy."""
    nonce = context.get("csp_nonce") if django.VERSION >= (6, 1) else None
    return media.render() if nonce is None else media.render(attrs={"nonce": nonce})


@register.simple_tag
def runs_end(outcome: str, error: str = "") -> str:
    """Return how a run ended, for people."""
    return outcome_label(outcome, error)
