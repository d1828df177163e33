"""Parse ``mongodb://host/database.collection``, and keep its credentials out of messages."""

from __future__ import annotations

import os
import re
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus

from dbloader.errors import PlaceError

# IPv6 addresses are in brackets.
_HOST = r"(?:\[[^\[\]/?@]*\]|[^\[\]:,/?@]+)(?::[0-9]+)?"
_PLACE = re.compile(
    rf"(mongodb|mongodb\+srv)://(?:([^/?@]*)@)?({_HOST}(?:,{_HOST})*)/([^/?@.]+)\.([^/?@]+)(?:\?(.*))?", re.IGNORECASE
)
# The values of these options may be secret.
_SECRET = ("authmechanismproperties", "tlscertificatekeyfilepassword", "proxyusername", "proxypassword")
# https://www.mongodb.com/docs/manual/reference/limits/ forbids these characters in names. '%' is also refused, because
# the driver would read it as an escape.
_NOT_IN_DATABASE = re.compile(r'[\x00\\ "$*<>:|%]')
_NOT_IN_COLLECTION = re.compile(r"[\x00$%]|^system\.|^\.|\.\.|\.$")
# MongoDB allows names of 255 bytes. The longest name ends in ``.<id>.large.chunks``; see schema.py.
_MAX_NAME_BYTES = 255 - len(f".{'0' * 24}.large.chunks")


class MongoURI(NamedTuple):
    """A parsed URI of a store in MongoDB.

    Attributes:
        user: ``user`` or ``user:password``, with the URI's escapes.
        hosts: One or more hosts, with their ports.
        query: The options after the ``?``, with the URI's escapes.
        stripped: Whether ``without_credentials`` removed credentials.
    """

    scheme: str
    user: str
    hosts: str
    database: str
    collection: str
    query: str
    stripped: bool = False

    @property
    def uri(self) -> str:
        """The URI, with the credentials."""
        user, query = f"{self.user}@" if self.user else "", f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{user}{self.hosts}/{self.database}.{self.collection}{query}"

    @property
    def redacted(self) -> str:
        """The URI without user and options, for messages."""
        return f"{self.scheme}://{self.hosts}/{self.database}.{self.collection}"

    @property
    def options(self) -> frozenset[str]:
        """The names of the options, lower-case."""
        return frozenset(map(_option_name, _split_options(self.query)))

    def __repr__(self) -> str:
        return f"MongoURI({self.redacted!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Keep credentials only in the pickle that multiprocessing sends to a new process through a pipe. A user may
        # store any other pickle in a file.
        return MongoURI, tuple(self if get_spawning_popen() is not None else self.without_credentials())

    def __deepcopy__(self, memo: object) -> MongoURI:
        return self  # the default would call __reduce__ and lose the credentials

    @property
    def client_key(self) -> tuple[str, ...]:
        """URIs with the same key share a client."""
        # If the URI has a user, the key includes the database, because MongoDB looks for the user in this database.
        return (self.scheme, self.user, self.hosts, self.query, self.database if self.user else "")

    @property
    def lacks_password(self) -> bool:
        """Whether the URI has a user but no password, and its authentication mechanism needs a password."""
        for option in _split_options(self.query):
            if _option_name(option) == "authmechanism":
                mechanism = unquote(option.partition("=")[2]).upper()
                if mechanism not in ("SCRAM-SHA-1", "SCRAM-SHA-256", "PLAIN", "DEFAULT"):
                    return False
        return self.user != "" and ":" not in self.user

    def without_credentials(self) -> MongoURI:
        """Return this URI without secret options. If the URI has a password, also remove user and password."""
        query = "&".join(part for part in _split_options(self.query) if _option_name(part) not in _SECRET)
        user = "" if ":" in self.user else self.user
        stripped = self.stripped or user != self.user or not set(_SECRET).isdisjoint(self.options)
        return self._replace(user=user, query=query, stripped=stripped)

    def redact(self, text: str) -> str:
        """Return a message with ``***`` in place of this URI's credentials."""
        secrets = {self.user, *self.user.split(":", 1)}
        options = _split_options(self.query)
        secrets |= {part.partition("=")[2] for part in options if _option_name(part) in _SECRET}
        secrets |= {decoded for secret in secrets for decoded in (unquote(secret), unquote_plus(secret))}
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            # A short secret may also occur inside ordinary words, so replace it only as a whole word.
            pattern = re.escape(secret) if len(secret) > 3 else rf"(?<!\w){re.escape(secret)}(?!\w)"
            text = re.sub(pattern, "***", text)
        return text


def parse(place: str | os.PathLike[str]) -> MongoURI:
    """Parse a URI of MongoDB without connecting to a server. Error messages never show what may be a password."""
    match = _PLACE.fullmatch(os.fspath(place))
    scheme, user, hosts, database, collection, query = match.groups(default="") if match else [""] * 6
    # If a password contains '/' and '?', the pattern wrongly matches everything after the '?' as options, including the
    # '@' that ends the password.
    if not match or ("@" in query and not user):
        raise PlaceError(
            "the URI of a MongoDB collection has the form mongodb://host/database.collection, got another form; "
            "in a user name or password, '/', '?', '@' and ':' must be escaped (%2F, %3F, %40, %3A)"
        )
    if len(database.encode()) > 63 or _NOT_IN_DATABASE.search(database) or _NOT_IN_COLLECTION.search(collection):
        raise PlaceError(
            f"MongoDB allows no collection {database + '.' + collection!r}: the name of the database is too long, or a "
            "name has a forbidden character"
        )
    if len(f"{database}.{collection}".encode()) > _MAX_NAME_BYTES:
        raise PlaceError(f"{database}.{collection} is too long: the limit is {_MAX_NAME_BYTES} bytes")
    return MongoURI(scheme.lower(), user, hosts, database, collection, query)


def _split_options(query: str) -> list[str]:
    return [part for part in re.split("[&;]", query) if part]  # the driver accepts both separators


def _option_name(option: str) -> str:
    return option.partition("=")[0].lower()
