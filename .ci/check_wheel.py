"""Build the sdist and the wheel, see that what a user needs is in them, and what he doesn't need is not, and use the
wheel in bare environments: each Python that is there with each Django that takes it.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIRS = [("3.11", "5.2"), *((python, django) for python in ("3.12", "3.13") for django in ("5.2", "6.0", "6.1"))]
IN_SDIST = (".ci", "bench", "django_locks", "docs", "testproject", "tests")
NEEDED = {
    "django_locks/py.typed",
    "django_locks/migrations/0001_initial.py",
    "django_locks/locale/de/LC_MESSAGES/django.mo",
    "django_locks/static/django_locks/leases.js",
    "django_locks/templates/admin/django_locks/lease/list.html",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["uv", "build", "-q", "--out-dir", folder, str(ROOT)], check=True)
        [wheel], [sdist] = Path(folder).glob("*.whl"), Path(folder).glob("*.tar.gz")
        check_wheel(wheel)
        check_sdist(sdist)
        tried = [pair for pair in PAIRS if smoke(wheel, *pair, Path(folder))]
        if not tried:
            sys.exit("No Python was found to try the wheel with.")
        print(f"{wheel.name}: sound; tried with " + ", ".join(f"Python {p} and Django {d}" for p, d in tried))


def check_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = (sources("django_locks") | NEEDED) - names
    foreign = {name for name in names if not re.match(r"django_locks/|django_lease_locks-[^/]*\.dist-info/", name)}
    if missing or foreign or not any(name.endswith("/licenses/LICENSE") for name in names):
        sys.exit(f"The wheel lacks {sorted(missing) or 'its licence'} or has {sorted(foreign)}.")


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "LICENSE"}.union(sources("*.md"), *map(sources, IN_SDIST))
    if wanted - names:
        sys.exit(f"The sdist lacks {sorted(wanted - names)}.")


def sources(folder: str) -> set[str]:
    """Return the files there that belong to the project."""
    found = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in found.stdout.splitlines() if (ROOT / name).exists()}


def smoke(wheel: Path, python: str, django: str, folder: Path) -> bool:
    """Use the installed wheel with nothing else than Django; return False where there is no such Python."""
    if subprocess.run(["uv", "python", "find", "-q", "--no-project", python], capture_output=True).returncode:
        return False
    place = folder / f"{python}-{django}"
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    interpreter = str(place / "bin" / "python")
    for command in (
        ["uv", "venv", "-q", "--no-project", "--python", python, str(place)],
        ["uv", "pip", "install", "-q", "--python", interpreter, str(wheel), f"django=={django}.*"],
        [interpreter, "-W", "error", "-c", SCRIPT],
    ):
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if ended.returncode:
            sys.exit(f"Python {python} and Django {django}: {command[:3]} failed.\n{ended.stdout}{ended.stderr}")
    shutil.rmtree(place)
    (folder / "smoke.sqlite3").unlink()
    return True


SCRIPT = """
import sys
import django_locks
from django.conf import settings

settings.configure(
    SECRET_KEY="only for this test",
    ALLOWED_HOSTS=["testserver"],
    ROOT_URLCONF="__main__",
    STATIC_URL="static/",
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    LANGUAGE_CODE="de",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "smoke.sqlite3"}},
    INSTALLED_APPS=[
        *(f"django.contrib.{app}" for app in ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")),
        "django_locks",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": [
            f"django.{part}.context_processors.{name}"
            for part, name in (("template", "request"), ("contrib.auth", "auth"), ("contrib.messages", "messages"))
        ]},
    }],
)
import django
django.setup()
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
client = Client()
client.force_login(User.objects.create_superuser("ada"))
with django_locks.locks.lock("smoke") as guard:
    guard.check()
    page = client.get("/admin/django_locks/lease/").content.decode()
assert "smoke" in page and "Sperren" in page, page
assert finders.find("django_locks/leases.js") and finders.find("django_locks/leases.css")
call_command("locks", "list", verbosity=0)
foreign = {
    "redis", "celery", "django_celery_beat", "huey", "dramatiq", "apscheduler", "rq", "django_rq", "django_q",
    "procrastinate", "django_tasks", "opentelemetry", "prometheus_client",
} & set(sys.modules)
assert not foreign, foreign
assert not [name for name in sys.modules if name.startswith("django_locks.contrib")]
"""


if __name__ == "__main__":
    main()
