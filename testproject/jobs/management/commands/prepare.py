from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Migrate the database and make the admin user demo, password demo."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        users = get_user_model()
        if not users.objects.filter(username="demo").exists():
            users.objects.create_superuser("demo", "demo@example.com", "demo")
        self.stdout.write("Migrated; the admin's user is demo, password demo.")
