"""Code under test which takes locks, as an application has it, and its view."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_locks import locks, with_lock


@with_lock("job")
def job(text: str) -> str:
    Group.objects.create(name=text)
    return text


@with_lock("job")
async def async_job(text: str) -> str:
    await Group.objects.acreate(name=text)
    return text


def fenced_job(text: str) -> None:
    with locks.lock("job", enforce=True) as guard, guard.atomic():
        with transaction.atomic():
            Group.objects.create(name=text)


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(job("by the view"))


urlpatterns = [path("job/", view)]
