from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LocksConfig(AppConfig):
    name = "django_locks"
    label = "django_locks"
    verbose_name = _("Locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, history  # noqa: F401 - registers the checks

        history.connect()
