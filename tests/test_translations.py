"""The catalogues: whole, compiled, and with the same fields as the text they stand for."""

from __future__ import annotations

import gettext
import re
from pathlib import Path

import pytest
from django.urls import reverse

import django_locks
from django_locks import locks

LOCALE = Path(django_locks.__file__).parent / "locale"
LANGUAGES = ["de", "es", "fr", "ja"]
FIELD = re.compile(r"%\(\w+\)[sd]|%%")


def catalogue(language: str) -> dict[object, str]:
    with (LOCALE / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        found = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {key: text for key, text in found.items() if key}


def of(key: object) -> str:
    return str(key[0] if isinstance(key, tuple) else key).rpartition("\x04")[2]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_of_the_source_is_in_the_compiled_catalogue(language):
    source = (LOCALE / language / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8")
    assert "fuzzy" not in source
    assert source.count("\nmsgid ") - 1 == len(
        {of(key) + str(key)[:30] for key in catalogue(language) if not plural(key)}
    )


def plural(key: object) -> bool:
    return isinstance(key, tuple) and key[1] != 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_have_the_fields_of_their_text(language):
    for key, text in catalogue(language).items():
        assert sorted(FIELD.findall(of(key))) == sorted(FIELD.findall(text)), key


def test_all_languages_have_the_same_texts():
    texts = [{of(key) for key in catalogue(language)} for language in LANGUAGES]
    assert all(each == texts[0] for each in texts)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", ["Sperre brechen", "Belegt", "Stand"]),
        ("es", ["Romper la concesión", "Ocupado"]),
        ("fr", ["Rompre le bail", "Détenu"]),
        ("ja", ["強制解除", "保持中"]),
    ],
)
def test_page_speaks_the_language(language, words, settings, admin_client):
    settings.LANGUAGE_CODE = language
    guard = locks.acquire("job")
    html = admin_client.get(reverse("admin:django_locks_lease_changelist")).content.decode()
    guard.release()
    for word in words:
        assert word in html
