"""Parse ``mongodb://host/database.collection``, and keep its credentials out of messages."""

from __future__ import annotations

import os
import re
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus

from dbloader.errors import PlaceError

SCHEMES = ("mongodb://", "mongodb+srv://")

# The beginning of a connection string, even if mistyped.
_LIKE_MONGO = re.compile(r"mongo(db)?(\+srv)?(:|//)", re.IGNORECASE)

# Options of a connection string that may hold secrets.
_SECRET = ("authmechanismproperties", "tlscertificatekeyfilepassword", "proxyusername", "proxypassword")
# Characters that https://www.mongodb.com/docs/manual/reference/limits/ forbids in names, and '%', because the driver
# would unescape it.
_NOT_IN_DATABASE = re.compile(r'[\x00/\\. "$*<>:|?%]')
_NOT_IN_COLLECTION = re.compile(r"[\x00$%]|^system\.|^\.|\.\.|\.$")
# Suffixes of the collections that dbloader makes next to the view; see schema.py.
_PART_OF_STORE = re.compile(r"\.(manifest|[0-9a-f]{24}(\..*)?)$")
# A host with a colon, but without a port number after the colon. IPv6 addresses are in brackets.
_NO_PORT = re.compile(r"(?:^|,)(?:\[[^\]]*\]|[^:,\[]*):(?![0-9]+(?:,|$))")
_MAX_NAMESPACE = 255
_LONGEST_SUFFIX = len(f".{'0' * 24}.large.chunks")
_FORM = "a place in MongoDB is mongodb://host/database.collection"


class MongoURI(NamedTuple):
    """A parsed place on a server.

    Attributes:
        uri: The connection string, with its credentials if it has any.
        redacted: The place without credentials and options, for messages.
        options: Names of the options in the connection string, lower-case.
        stripped: Whether its credentials were removed.
    """

    uri: str
    database: str
    collection: str
    redacted: str
    options: frozenset[str]
    stripped: bool = False

    def __repr__(self) -> str:
        return f"MongoURI({self.redacted!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Only a pickle that multiprocessing makes to start a process contains credentials. It goes through a pipe. A
        # user may store any other pickle in a file.
        return MongoURI, tuple(self if get_spawning_popen() is not None else self.without_credentials())

    def __deepcopy__(self, memo: object) -> MongoURI:
        return self  # the default would call __reduce__ and lose the credentials

    @property
    def client_key(self) -> tuple[str, ...]:
        """Places with the same key share a client."""
        before_query, _, query = self.uri.partition("?")
        server, _, _ = before_query.rpartition("/")
        # With a user, the database is a part of the key, because MongoDB looks for the user in this database.
        return (server, query, self.database if "@" in server else "")

    @property
    def credentials(self) -> tuple[str, str | None]:
        """The escaped user name and the escaped password, or None if the place has no password."""
        user, colon, password = self._user_and_password.partition(":")
        return user, password if colon else None

    @property
    def takes_password(self) -> bool:
        """Whether the server checks the user's password, not a certificate, ticket or token."""
        for part in _split_options(self.uri.partition("?")[2]):
            if _option_name(part) == "authmechanism":
                return unquote(part.partition("=")[2]).upper() in ("SCRAM-SHA-1", "SCRAM-SHA-256", "PLAIN", "DEFAULT")
        return True

    @property
    def _user_and_password(self) -> str:
        return self.uri.partition("://")[2].partition("?")[0].rpartition("@")[0]

    def without_credentials(self) -> MongoURI:
        """Return this place without secret options. If it has a password, also leave out the user and the password."""
        scheme, _, rest = self.uri.partition("://")
        hosts_and_path, mark, query = rest.partition("?")
        kept = [part for part in _split_options(query) if _option_name(part) not in _SECRET]
        if ":" in self._user_and_password:
            hosts_and_path = hosts_and_path.rpartition("@")[2]
        uri = f"{scheme}://{hosts_and_path}{mark}{'&'.join(kept)}"
        names = frozenset(map(_option_name, kept))
        return self._replace(uri=uri, options=names, stripped=self.stripped or uri != self.uri)

    def redact(self, text: str) -> str:
        """Return a message of a library with ``***`` in place of this place's credentials."""
        user = self._user_and_password
        secrets = {user, *user.split(":", 1)}
        options = _split_options(self.uri.partition("?")[2])
        secrets |= {part.partition("=")[2] for part in options if _option_name(part) in _SECRET}
        secrets |= {decoded for secret in secrets for decoded in (unquote(secret), unquote_plus(secret))}
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            # A short secret may also occur inside ordinary words, so replace it only as a whole word.
            pattern = re.escape(secret) if len(secret) > 3 else rf"(?<!\w){re.escape(secret)}(?!\w)"
            text = re.sub(pattern, "***", text)
        return text


def is_mongo(place: object) -> bool:
    """Return whether a place is a MongoDB URI. Mistyped URIs count too, because they may contain a password."""
    return isinstance(place, str) and _LIKE_MONGO.match(place) is not None


def parse(place: str | os.PathLike[str]) -> MongoURI:
    """Parse a place in MongoDB without connecting to a server. No error message repeats a possible password."""
    scheme, separator, rest = os.fspath(place).partition("://")
    if (scheme + separator).lower() not in SCHEMES:
        raise PlaceError(f"{_FORM}, got a place that begins with neither mongodb:// nor mongodb+srv://")
    text = f"{scheme.lower()}://{rest}"
    before_query, _, query = rest.partition("?")
    authority, slash, path = before_query.partition("/")
    if "/" in path and "@" not in text:
        raise PlaceError(f"{_FORM}, with a '.' before the collection and no other '/'")
    if "@" in path or "/" in path or ("@" in query and "@" not in authority):
        # The password is not escaped, or the place has two paths. Any part of the place could belong to the password.
        raise PlaceError(
            f"{_FORM}; in a user name or password, '/', '?', '@' and ':' must be escaped (%2F, %3F, %40, %3A)"
        )
    hosts = authority.rpartition("@")[2]
    if not hosts:
        raise PlaceError(f"{_FORM}, got a place without a host")
    if _NO_PORT.search(hosts):
        # Show no part, because user:password without a host looks like this too.
        raise PlaceError(f"{_FORM}, got a place whose port is not a number, or whose host is missing after a password")
    server = f"{scheme.lower()}://{hosts}/"
    database, dot, collection = path.partition(".")
    if not slash or not database:
        raise PlaceError(f"{server} names no database and no collection: {_FORM}")
    if not dot or not collection:
        raise PlaceError(f"{server}{database} names no collection: {_FORM}, such as {server}{database}.train")
    if _NOT_IN_DATABASE.search(database) or len(database.encode()) > 63:
        raise PlaceError(f"no database can be named {database!r}: {_FORM}")
    if _NOT_IN_COLLECTION.search(collection):
        raise PlaceError(f"no collection can be named {collection!r}: {_FORM}")
    if _PART_OF_STORE.search(collection):
        store = _PART_OF_STORE.sub("", collection)
        raise PlaceError(f"{collection!r} is a part of the store {store!r}: give the name of the store")
    if len(f"{database}.{collection}".encode()) + _LONGEST_SUFFIX > _MAX_NAMESPACE:
        raise PlaceError(f"the name {database}.{collection} is too long for a place in MongoDB")
    options = frozenset(map(_option_name, _split_options(query)))
    return MongoURI(text, database, collection, f"{server}{database}.{collection}", options)


def _split_options(query: str) -> list[str]:
    return [part for part in re.split("[&;]", query) if part]  # the driver accepts both separators


def _option_name(option: str) -> str:
    return option.partition("=")[0].lower()
