"""Arguments that are places. The credentials in them stay out of all messages, also those of mistyped places."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

import click
from typing_extensions import override

from dbloader.stores.mongo.uri import is_mongo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What may stand before a user and a password: mongodb://, mongodb:/, mongo://, mongodb//, //, --listing=mongodb://.
_SCHEME = re.compile(r"(?is)^.*?(?://+|[:;]/+|mongo[^/@:;]*[:;]?/*)")
_DELIMITERS = re.compile(r"[:/@?#=&;,\s]+")
# A port that is no number is a password without the "@host" that should follow. IPv6 addresses are in brackets.
_NO_PORT = re.compile(r":(?![0-9]*(?:[/?,\s]|$))([^/?,\s]+)")
_IPV6 = re.compile(r"\[[0-9a-fA-F:.]+\]")
# Options of a connection string that are secret, or contain something secret.
_OPTION = re.compile(r"(?i)[?&;][^=&;]*(?:password|username|properties)[^=&;]*=([^&;]*)")
_STARS = "***"

_secrets: tuple[str, ...] = ()


class PlaceArgument(click.Path):
    """A path, which a shell can complete, or the URI of a collection."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        mistyped = value.lower().startswith("mongo") and not is_mongo(value)
        if mistyped and redacted(value) != value:  # a file of that name would have the password in its path
            self.fail(f"{value} is mistyped: a place in MongoDB is mongodb://host/database.collection", param, ctx)
        return super().convert(value, param, ctx)


def remember(arguments: Sequence[str]) -> None:
    """Look for credentials in the arguments of the command line, which ``redacted`` removes from messages."""
    global _secrets  # of the one command line that a process has
    found = {secret for at, argument in enumerate(arguments) for secret in _find(argument, arguments[at + 1 :])}
    spellings = {spelling for secret in found for spelling in _spellings(secret)}
    _secrets = tuple(sorted(filter(None, spellings), key=len, reverse=True))


def redacted(text: str) -> str:
    """Return a message without the credentials that were found, however they are escaped in it."""
    for secret in _secrets:
        # A short one may be a part of other words.
        text = re.sub(re.escape(secret) if len(secret) > 3 else rf"(?<!\w){re.escape(secret)}(?!\w)", _STARS, text)
    return text


def _find(argument: str, later: Sequence[str]) -> Iterator[str]:
    yield from _OPTION.findall(argument)
    if "@" not in argument and (_SCHEME.match(argument) or "mongo" in argument.lower()):
        passwords = _NO_PORT.findall(_IPV6.sub("", _SCHEME.sub("", argument)))
        yield from passwords
        if passwords and any("@" in other for other in later):  # a shell has divided a password at its spaces
            argument = " ".join([argument, *later])
    before_host = argument.rpartition("@")[0]
    absolute_path = re.match("/[^/]", argument) and not _SCHEME.match(argument)
    if ":" in before_host and not absolute_path:
        credentials = _SCHEME.sub("", before_host, count=1)
        _, *password = re.split("[:/]", credentials, maxsplit=1)
        if password:
            yield from (credentials, password[0], *_DELIMITERS.split(password[0]))


def _spellings(secret: str) -> set[str]:
    """Return how a text may appear in a message: as it is, decoded, as part of a path, and escaped by Python."""
    plain = {secret, unquote(secret), unquote_plus(secret)}
    plain |= {re.sub("/+", "/", text) for text in plain}
    escaped = {repr(text)[1:-1] for text in plain}
    escaped |= {text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in plain}
    return plain | escaped
