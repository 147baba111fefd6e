"""DATABASE_URL as an entry of DATABASES."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

ENGINES = {
    "sqlite": "django.db.backends.sqlite3",
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "mariadb": "django.db.backends.mysql",
}


def database(url: str) -> dict[str, Any]:
    """Return the entry for ``sqlite:///file``, ``postgres://user:password@host:port/name`` or ``mysql://…``.

    What follows a ``?`` becomes OPTIONS. Raises ValueError for any other kind of URL, without repeating its password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ENGINES:
        raise ValueError(f"DATABASE_URL begins with {parts.scheme!r}; it must be one of {', '.join(ENGINES)}.")
    engine = ENGINES[parts.scheme]
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if parts.scheme == "sqlite":
        return {"ENGINE": engine, "NAME": unquote(parts.path[1:]) or ":memory:", "OPTIONS": {"timeout": 20, **options}}
    if engine.endswith("mysql"):
        _use_pymysql()
    return {
        "ENGINE": engine,
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or options.pop("host", ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }


def _use_pymysql() -> None:
    try:
        import MySQLdb  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.version_info = (2, 2, 7, "final", 0)  # Django asks for a recent mysqlclient
        pymysql.install_as_MySQLdb()
