"""Print text, after making it safe for the terminal. All commands print through this module."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any
from unicodedata import category

import click

from dbloader.cli.places import redacted

# Joiners of letters in Persian and Indian scripts: the only format characters that belong to the spelling of words.
_JOINERS = "\u200c\u200d"


def say(line: str, *, err: bool = False) -> None:
    """Print one line; on stderr, without the credentials that were given as arguments."""
    click.echo(printable(redacted(line) if err else line), err=err)


def complain(message: str) -> None:
    """Print an error on stderr, as one line."""
    say(f"Error: {' '.join(redacted(message).splitlines())}", err=True)


def say_next(what: str, *words: str) -> None:
    """Print the command that may be next, where a person reads: on a terminal, not in a pipe or a log."""
    if sys.stdout is not None and sys.stdout.isatty():
        say(f"{what}: {shlex.join(words)}")


def can_draw() -> bool:
    """Return whether stdout is a terminal that shows colors, and whose user wants them (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout is not None and sys.stdout.isatty() and not plain


def draw(line: str) -> None:
    """Print one line of a picture, with the commands to a terminal that are its colors."""
    click.echo(line)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON, in ASCII, so that a terminal obeys none of it."""
    click.echo(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))  # DEL, which JSON need not escape


def printable(text: str) -> str:
    r"""Return a text with everything escaped that a terminal may take for a command, such as ``\x1b``.

    That is control characters (with newlines), characters that change the direction of writing or are invisible, line
    and paragraph separators, and lone surrogates. The letters of all scripts stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(ascii(letter)[1:-1] if _is_command(letter) else letter for letter in text)


def _is_command(letter: str) -> bool:
    return category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _JOINERS
