"""Places in MongoDB: ``mongodb://host/database.collection``, and what of them may be shown."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from dbloader.errors import PlaceError

SCHEMES = ("mongodb://", "mongodb+srv://")

# What begins like a connection string, and is no likely path.
_LIKE_MONGO = re.compile(r"mongo(db)?(\+srv)?(:|//)", re.IGNORECASE)

# Options of a connection string that are secrets, or hold some.
_SECRET = ("authmechanismproperties", "tlscertificatekeyfilepassword", "proxyusername", "proxypassword")
# https://www.mongodb.com/docs/manual/reference/limits/: what a name of a database or collection may not hold.
# And '%': the driver would take the place for escaped.
_NOT_IN_DATABASE = re.compile(r'[\x00/\\. "$*<>:|?%]')
_NOT_IN_COLLECTION = re.compile(r"[\x00$%]|^system\.|^\.|\.\.|\.$")
# What dbloader makes beside a collection; see layout.
_OF_OURS = re.compile(r"\.(manifest|[0-9a-f]{24}(\..*)?)$")
# What follows the colon after a host and is no port; an IPv6 address stands in brackets.
_NO_PORT = re.compile(r"(?:^|,)(?:\[[^\]]*\]|[^:,\[]*):(?![0-9]+(?:,|$))")
_MAX_NAMESPACE = 255
# The longest name that dbloader makes of a collection's: a store's id of 24 digits and a GridFS suffix.
_LONGEST_SUFFIX = len(f".{'0' * 24}.large.chunks")
_FORM = "a place in MongoDB is mongodb://host/database.collection"


class MongoURI(NamedTuple):
    """Where a store is on a server.

    Attributes:
        uri: The connection string, with whatever credentials it has.
        database: Name of the database.
        collection: Name of the collection of records.
        shown: The place as it may be shown: without credentials and options.
        options: The names of the options in the connection string, lower-case.
        stripped: Whether it had credentials that were taken away.
    """

    uri: str
    database: str
    collection: str
    shown: str
    options: frozenset[str]
    stripped: bool = False

    def __repr__(self) -> str:
        return f"MongoURI({self.shown!r})"

    @property
    def server(self) -> tuple[str, ...]:
        """What tells the place's client from others: the connection string without the collection, ..."""
        before_query, _, query = self.uri.partition("?")
        server, _, _ = before_query.rpartition("/")
        # ... and without the database, unless the user is looked up there.
        return (server, query, self.database if "@" in server else "")

    @property
    def credentials(self) -> tuple[str, str | None]:
        """The user and the password of the connection string, as they stand there: escaped; None for no password."""
        user, colon, password = self._user_and_password.partition(":")
        return user, password if colon else None

    @property
    def takes_password(self) -> bool:
        """Whether its user is known by a password: not by a certificate, a ticket or a token."""
        for part in _parts(self.uri.partition("?")[2]):
            if _name(part) == "authmechanism":
                return unquote(part.partition("=")[2]).upper() in ("SCRAM-SHA-1", "SCRAM-SHA-256", "PLAIN", "DEFAULT")
        return True

    @property
    def _user_and_password(self) -> str:
        return self.uri.partition("://")[2].partition("?")[0].rpartition("@")[0]

    def without_credentials(self) -> MongoURI:
        """Return the same place without password and secret options; a user without a password stays."""
        scheme, _, rest = self.uri.partition("://")
        hosts_and_path, mark, query = rest.partition("?")
        kept = [part for part in _parts(query) if _name(part) not in _SECRET]
        if ":" in self._user_and_password:
            hosts_and_path = hosts_and_path.rpartition("@")[2]
        uri = f"{scheme}://{hosts_and_path}{mark}{'&'.join(kept)}"
        return self._replace(uri=uri, options=frozenset(map(_name, kept)), stripped=self.stripped or uri != self.uri)

    def scrubbed(self, text: str) -> str:
        """Return a text of some library without the credentials that it may repeat."""
        user = self._user_and_password
        secrets = {user, *user.split(":", 1)}
        secrets |= {part.partition("=")[2] for part in _parts(self.uri.partition("?")[2]) if _name(part) in _SECRET}
        secrets |= {decoded for secret in secrets for decoded in (unquote(secret), unquote_plus(secret))}
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            # A short one is also a part of many a word.
            pattern = re.escape(secret) if len(secret) > 3 else rf"(?<!\w){re.escape(secret)}(?!\w)"
            text = re.sub(pattern, "***", text)
        return text


def is_mongo(place: object) -> bool:
    """Tell whether a place is in MongoDB, or was meant to be: ``mongodb:/`` with a password is no path to print."""
    return isinstance(place, str) and _LIKE_MONGO.match(place) is not None


def parse(place: str | os.PathLike[str]) -> MongoURI:
    """Return the parts of a place in MongoDB. No server is asked, nor any name server.

    Raises:
        PlaceError: The place has no database or collection, or names that cannot be; what may be a password is not
            repeated.
    """
    scheme, separator, rest = os.fspath(place).partition("://")
    if (scheme + separator).lower() not in SCHEMES:
        raise PlaceError(f"{_FORM}, got one that begins with neither mongodb:// nor mongodb+srv://")
    text = f"{scheme.lower()}://{rest}"
    before_query, _, query = rest.partition("?")
    authority, slash, path = before_query.partition("/")
    if "@" in path or "/" in path or ("@" in query and "@" not in authority):
        # An unescaped password; or a place with two paths. What is shown could be a part of the password.
        raise PlaceError(
            f"{_FORM}; in a user name or password '/', '?', '@' and ':' must be escaped (%2F, %3F, %40, %3A)"
        )
    hosts = authority.rpartition("@")[2]
    if not hosts:
        raise PlaceError(f"{_FORM}, got one without a host")
    if _NO_PORT.search(hosts):
        # A user and a password without a host, perhaps: nothing of it is repeated.
        raise PlaceError(f"{_FORM}, got one whose port is not a number, or whose host is missing after a password")
    shown_server = f"{scheme.lower()}://{hosts}/"
    database, dot, collection = path.partition(".")
    if not slash or not database:
        raise PlaceError(f"{shown_server} names no database and no collection: {_FORM}")
    if not dot or not collection:
        raise PlaceError(
            f"{shown_server}{database} names no collection: {_FORM}, such as {shown_server}{database}.train"
        )
    if _NOT_IN_DATABASE.search(database) or len(database.encode()) > 63:
        raise PlaceError(f"no database can be named {database!r}: {_FORM}")
    if _NOT_IN_COLLECTION.search(collection):
        raise PlaceError(f"no collection can be named {collection!r}: {_FORM}")
    if _OF_OURS.search(collection):
        raise PlaceError(f"{collection!r} is the name of a part of a store: give the store's own")
    if len(f"{database}.{collection}".encode()) + _LONGEST_SUFFIX > _MAX_NAMESPACE:
        raise PlaceError(f"the name {database}.{collection} is too long for a place in MongoDB")
    options = frozenset(map(_name, _parts(query)))
    return MongoURI(text, database, collection, f"{shown_server}{database}.{collection}", options)


def _parts(query: str) -> list[str]:
    """Return the options of a connection string; the driver takes semicolons too."""
    return [part for part in re.split("[&;]", query) if part]


def _name(option: str) -> str:
    return option.partition("=")[0].lower()
