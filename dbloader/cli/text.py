"""What reaches the terminal: the one place where text is made safe and printed."""

from __future__ import annotations

import codecs
import json
import re
import sys
from typing import TYPE_CHECKING, Any
from unicodedata import category

import click

from dbloader.cli.redacting import redacted

if TYPE_CHECKING:
    from collections.abc import Callable

# Joiners of letters, in words of Persian and of India's scripts: the only format characters that are spelling.
_JOINERS = "\u200c\u200d"


def counted(number: int, thing: str) -> str:
    """Return "1 record", "2,000 records"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(nbytes: float) -> str:
    """Return "17 bytes", "1.3 MB"; a kB has 1,000 bytes."""
    if nbytes < 1000:
        return counted(int(nbytes), "byte")
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.95:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1000:,.1f} TB"


def say(line: str, *, err: bool = False) -> None:
    """Print one line; on stderr without the credentials that an argument had."""
    click.echo(printable(redacted(line) if err else line), err=err)


def complain(message: str) -> None:
    """Print an error, in one line."""
    say(f"Error: {' '.join(redacted(message).splitlines())}", err=True)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON; control characters are escaped, so that a terminal does not obey them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # there may be no standard output
    text = json.dumps(
        value,
        indent=indent,
        ensure_ascii=codecs.lookup(encoding).name != "utf-8",
    )
    lines = (_escaped(line, _in_json) for line in text.split("\n"))  # JSON has no newline inside a text
    click.echo("\n".join(lines))


def printable(text: str) -> str:
    r"""Return a text in which nothing is a command to the terminal: ``\x1b`` and the like are spelled out.

    Spelled out are control characters (C0 with newlines, DEL and C1), characters that change the direction of writing
    or cannot be seen, line and paragraph separators, and lone surrogates. Letters of every script stay as they are.
    """
    return _escaped(text, lambda letter: ascii(letter)[1:-1])


def _escaped(text: str, spelled: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(spelled(letter) if _is_command(letter) else letter for letter in text)


def _is_command(letter: str) -> bool:
    return category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _JOINERS


def _in_json(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return re.sub("....", r"\\u\g<0>", units)
