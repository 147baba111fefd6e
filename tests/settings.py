import tempfile
from pathlib import Path

SECRET_KEY = "tests"
FOLDER = Path(tempfile.mkdtemp(prefix="django-locks-"))
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_locks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(FOLDER / "default.sqlite3")}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
