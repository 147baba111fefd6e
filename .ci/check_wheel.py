"""Build the sdist and the wheel, and see that what a user needs is in it, and what he doesn't need is not."""

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["uv", "build", "-q", "--out-dir", folder, str(ROOT)], check=True)
        [wheel] = Path(folder).glob("*.whl")
        check_content(wheel)
        check_in_bare_environment(wheel, Path(folder) / "venv")
        print(f"{wheel.name}: sound")


def check_content(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "django_locks").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    missing = source - names
    foreign = {name for name in names if not re.match(r"django_locks/|django_lease_locks-[^/]*\.dist-info/", name)}
    if missing or foreign or "django_locks/py.typed" not in names:
        sys.exit(f"The wheel lacks {sorted(missing)} and has {sorted(foreign)}.")


def check_in_bare_environment(wheel: Path, folder: Path) -> None:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", str(wheel)], check=True)
    script = """
import sys, django_locks
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "smoke.sqlite3"}
settings.configure(INSTALLED_APPS=["django_locks"], DATABASES={"default": database})
import django
django.setup()
from django.core.management import call_command
call_command("check")
call_command("migrate", verbosity=0)
with django_locks.locks.lock("smoke") as guard:
    guard.check()
foreign = {
    "redis", "celery", "django_celery_beat", "huey", "dramatiq", "apscheduler", "rq", "django_rq", "django_q",
    "procrastinate", "django_tasks", "opentelemetry", "prometheus_client",
} & set(sys.modules)
assert not foreign, foreign
assert not [name for name in sys.modules if name.startswith("django_locks.contrib")]
"""
    subprocess.run([python, "-W", "error", "-c", script], check=True, cwd=folder)


if __name__ == "__main__":
    main()
