"""Keep the credentials in the arguments of the command line out of all messages."""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

# What stands before the credentials of a place in MongoDB, also of a mistyped one or one given to an option:
# mongodb://, mongodb:/, mongo://, mongodb//, //, --list=mongodb://.
_BEFORE = re.compile(
    r"(?is)(?:-[^=@]*=)?(?:[^@]*?[:;]//+|[^/@:;]*[:;]/|[^/@:;]*//+(?=[^/@]*:.*@)|mongo[^/@:]*/+|mongo\w*(?:\+srv)?:)"
)
# user:password@host without anything before.
_BARE = re.compile(r"(?s)[^/@]*:.*@")
# One host or several, each perhaps with a port: a place without credentials begins with these.
_HOST = r"(?:\[[0-9a-fA-F:.]+\]|[^:/?@]*)(?::[0-9]+)?"
_HOSTS = re.compile(rf"(?s){_HOST}(?:,{_HOST})*(?:[/?].*)?")
# Options of a connection string that are secrets, or hold some.
_OPTION = re.compile(r"(?i)(?<=[?&;])([^=&;]*(?:password|username|properties)[^=&;]*=)([^&;]*)")
_STARS = "***"

_secrets: tuple[str, ...] = ()


class Argument(str):
    """An argument as it may be shown.

    Attributes:
        given: It as it was given, with its credentials.
    """

    __slots__ = ("given",)
    given: str


def hide(arguments: list[str]) -> list[str]:
    """Return arguments without their credentials, for a parser that repeats them in its messages.

    Those that had some are an ``Argument``. What was found is remembered for ``redacted``.
    """
    global _secrets  # of the one command line that a process has
    found: set[str] = set()
    shown = []
    cut = False  # in the middle of a password with a space in it that the shell has divided
    for at, argument in enumerate(arguments):
        before = _BEFORE.match(argument)
        if cut:
            start, end = 0, argument.rfind("@")
            cut = end < 0
        elif before:
            start, end = before.end(), argument.rfind("@")
            no_hosts = end < start and not _HOSTS.fullmatch(argument, start)
            cut = no_hosts and any("@" in later for later in arguments[at + 1 :])
            if no_hosts and not cut and ("//" in before[0] or "mongo" in before[0].lower()):
                end = len(argument)  # a user and a password, and no host after them
                found |= _parts(re.split("[/?\\s]", argument[start:], maxsplit=1)[0])
        else:
            if _BARE.match(argument):  # which may be the name of a file too
                found |= _parts(argument.rpartition("@")[0])
            shown.append(argument)
            continue
        end = len(argument) if cut else max(start, end)
        found |= {argument[start:end]} if cut else _parts(argument[start:end])
        found |= {match[2] for match in _OPTION.finditer(argument, end)}
        safe = Argument(
            argument[:start] + (_STARS if end > start else "") + _OPTION.sub(rf"\g<1>{_STARS}", argument[end:])
        )
        safe.given = argument
        shown.append(safe if safe != argument else argument)
    spelled = {spelling for secret in found for spelling in _spellings(secret)}
    _secrets = tuple(sorted(filter(None, spelled), key=len, reverse=True))
    return shown


def redacted(text: str) -> str:
    """Return a message without the credentials that ``hide`` has found, however they are escaped in it."""
    for secret in _secrets:
        # A short one is also a part of many a word.
        text = re.sub(re.escape(secret) if len(secret) > 3 else rf"(?<!\w){re.escape(secret)}(?!\w)", _STARS, text)
    return text


def _parts(credentials: str) -> set[str]:
    _, colon, password = credentials.partition(":")
    return {credentials, password} if colon else {f"{credentials}@"}  # a user alone may be a word of the message


def _spellings(secret: str) -> set[str]:
    """Return how a text may stand in a message: decoded, as a path, and as Python shows it."""
    plain = {secret, unquote(secret), unquote_plus(secret)}
    plain |= {re.sub("/+", "/", text) for text in plain}
    shown = {repr(text)[1:-1] for text in plain}
    shown |= {text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in plain}
    return plain | shown
