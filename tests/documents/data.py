"""Blocks that are no program: read as what they are, and the command lines in them checked."""

from __future__ import annotations

import configparser
import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.documents.commands import run_line, run_words

DOCKERFILE = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "CMD", "USER"}


def read_yaml(text: str, folder: Path) -> None:
    for document in yaml.safe_load_all(text):
        for words in _command_lines(document):
            run_words(words, folder)


def _command_lines(value: Any) -> Iterator[list[str]]:
    """Yield what a manifest, a Compose file or a Procfile would run."""
    if isinstance(value, dict):
        line = [*_words(value.get("entrypoint", [])), *_words(value.get("command", [])), *_words(value.get("args", []))]
        if line:
            yield line
        elif all(isinstance(text, str) and " " in text for text in value.values()):  # a Procfile
            yield from map(shlex.split, value.values())
        for inner in value.values():
            yield from _command_lines(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _command_lines(inner)


def _words(value: Any) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else value


def read_unit(text: str, folder: Path) -> None:
    """Read a unit of systemd."""
    parser = configparser.ConfigParser(delimiters=["="], interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string(text)
    for section in parser.values():
        for key, value in section.items():
            if key.startswith("Exec"):
                run_line(value.lstrip("-"), folder)


def read_dockerfile(text: str, folder: Path) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if not instruction or instruction.startswith("#"):
            continue
        assert instruction in DOCKERFILE, instruction
        if instruction in ("ENTRYPOINT", "CMD"):
            run_words(json.loads(rest), folder)


READERS = {
    "yaml": read_yaml,
    "ini": read_unit,
    "dockerfile": read_dockerfile,
    "json": lambda text, folder: json.loads(text),
    "toml": lambda text, folder: tomllib.loads(text),
}
