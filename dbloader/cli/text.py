"""Print text for all commands, without passwords. Escape control characters, because a terminal would obey them."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from dbloader._describe import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

# Matches the password in a place, even if the place is mistyped or not escaped. Also matches secrets of MongoDB.
# s3://bucket/a:b@2x.png and https://host:8080/a@2x.png have no password.
_SECRET = re.compile(
    r"""(?i)((?:://(?!(?<=http://|ttps://)[^\s:/@]+:\d+/)[^\s:/]*|mongo(?:db)?(?:\+srv)?(?::|//)/*[^\s:]*):)"""
    r"""(?:\S*|(?!\s|\d+[/,\s])[^'"\n]*)(?=@)"""
    r"""|((?:authmechanismproperties|tlscertificatekeyfilepassword|proxyusername|proxypassword)=)[^&;\s'"]+"""
)


def say(line: str, *, err: bool = False) -> None:
    """Print one line. On stderr, ``***`` replaces passwords, because a message may repeat what the user has typed."""
    click.echo(printable(_SECRET.sub(r"\1\2***", line) if err else line), err=err)


def complain(message: str) -> None:
    """Print an error message to stderr as one line."""
    say(f"Error: {' '.join(message.splitlines())}", err=True)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON in ASCII, without control characters."""
    click.echo(json.dumps(value, indent=indent).replace("\x7f", "\\u007f"))  # json does not escape DEL


@contextmanager
def after_making(what: str) -> Iterator[None]:
    """Add a note to an OSError in the block: the new store or folder is complete, but its report was not printed."""
    try:
        yield
    except OSError as error:
        error.add_note(f"{what} is complete, and only the report could not be printed")
        raise
