"""Ways to the admin's pages, and what is on them."""

from __future__ import annotations

import re
from html import unescape

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_locks.places import key_of

NAMES = [
    'a/b:c?d#e"<script>',
    "..",
    ".",
    "two words",
    "100%",
    "_5F",
    "add",
    "a&amp;b",
    "<img src=x onerror=alert(1)>",
    "größe",
    "😀",
    "'",
    "\\",
    "a+b;c=d,e",
]


def list_url():
    return reverse("admin:django_locks_lease_changelist")


def key(stored, alias="default"):
    return key_of(alias, stored)


def change_url(stored, alias="default"):
    return reverse("admin:django_locks_lease_change", args=[key(stored, alias)])


def history_url(stored):
    return reverse("admin:django_locks_lease_history", args=[key(stored)])


def client_of(*permissions, **options):
    user = User.objects.create_user("ada", password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(**options)
    client.force_login(user)
    return client


def page(client, url):
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode().replace("\N{NO-BREAK SPACE}", " ")


def links(html):
    return [unescape(link) for link in re.findall(r'<a[^>]* href="([^"]*)"', html)]


def fields(html):
    """Return the hidden fields of a page's forms for locks."""
    found = []
    for tag in re.findall(r"<input [^>]*>", html[html.index('class="locks"') :]):
        attributes = {key: unescape(value) for key, value in re.findall(r'([a-z]+)="([^"]*)"', tag)}
        if attributes.get("type") == "hidden" and attributes["name"] != "csrfmiddlewaretoken":
            found.append((attributes["name"], attributes["value"]))
    return found


def shown(response):
    return [each["row"].stored for each in response.context["rows"]]


def confirmation(client, *names, action="break_lease", alias="default"):
    response = client.post(list_url(), {"action": action, "_selected_action": [key(name, alias) for name in names]})
    assert response.status_code == 200
    return response.content.decode().replace("\N{NO-BREAK SPACE}", " ")


def confirm(client, html, **data):
    data = {"confirmed": ["1"], **data}
    for name, value in fields(html):
        data.setdefault(name, []).append(value)
    return client.post(list_url(), data, follow=True)
