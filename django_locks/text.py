"""Text from outside made fit to be shown: on a terminal, in a log, on a page."""

from __future__ import annotations

import re
import unicodedata

# They reorder what stands around them, up to the end of the line: https://www.unicode.org/reports/tr9/#Directional_Formatting_Characters
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_USER = re.compile(r"://\S*@")
_QUERY = re.compile(r"(?<=password=)[^&\s'\"]*")


def printable(text: str) -> str:
    """Return the text with characters that steer the terminal, or the order of writing, made visible (``\\u202e``)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in _BIDI_CONTROLS or unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
        return character.encode("unicode_escape").decode()
    return character


def without_passwords(text: str) -> str:
    """Return the text without user names and passwords of URLs: one may be where no URL belongs."""
    return _QUERY.sub("***", _USER.sub("://***@", text))


def table(rows: list[list[str]]) -> list[str]:
    """Return the rows as lines whose columns are aligned, as wide as a terminal shows them."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell + " " * (size - width(cell)) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    return sum(_columns(character) for character in text)


def cut(text: str, columns: int) -> str:
    """Return the text, or as much of it as so many columns of a terminal can show, with an ellipsis."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return f"{text}…"


def _columns(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
