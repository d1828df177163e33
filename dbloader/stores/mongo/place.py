"""Places in MongoDB: ``mongodb://host/database.collection``, and what of them may be shown."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from dbloader.errors import PlaceError

SCHEMES = ("mongodb://", "mongodb+srv://")

# Options of a connection string that are secrets, or hold some.
_SECRET = ("authmechanismproperties", "tlscertificatekeyfilepassword", "proxyusername", "proxypassword")
# https://www.mongodb.com/docs/manual/reference/limits/: what a name of a database or collection may not hold.
_NOT_IN_DATABASE = re.compile(r'[\x00/\\. "$*<>:|?]')
_MAX_NAMESPACE = 255
# The longest name that dbloader makes of a collection's: a store's id of 24 digits and a GridFS suffix.
_LONGEST_SUFFIX = len(f".{'0' * 24}.large.chunks")
_FORM = "a place in MongoDB is mongodb://host/database.collection"


class MongoPlace(NamedTuple):
    """Where a store is on a server.

    Attributes:
        uri: The connection string, with whatever credentials it has.
        database: Name of the database.
        collection: Name of the collection of records.
        shown: The place as it may be shown: without credentials and options.
        options: The names of the options in the connection string, lower-case.
    """

    uri: str
    database: str
    collection: str
    shown: str
    options: frozenset[str]

    def __repr__(self) -> str:
        return f"MongoPlace({self.shown!r})"

    def without_credentials(self) -> MongoPlace:
        """Gives the same place without user, password and secret options."""
        scheme, _, rest = self.uri.partition("://")
        hosts_and_path, mark, query = rest.partition("?")
        kept = [part for part in query.split("&") if part.partition("=")[0].lower() not in _SECRET]
        uri = f"{scheme}://{hosts_and_path.rpartition('@')[2]}{mark}{'&'.join(kept)}"
        return self._replace(uri=uri, options=frozenset(part.partition("=")[0].lower() for part in kept if part))

    def scrubbed(self, text: str) -> str:
        """Gives a text of some library without the credentials that it may repeat."""
        authority = self.uri.partition("://")[2].partition("?")[0]
        secrets = [authority.rpartition("@")[0]]
        secrets += secrets[0].split(":")
        secrets += [
            part.partition("=")[2]
            for part in self.uri.partition("?")[2].split("&")
            if part.partition("=")[0].lower() in _SECRET
        ]
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def is_mongo(place: object) -> bool:
    """Tells whether a place is in MongoDB."""
    return isinstance(place, str) and place.lower().startswith(SCHEMES)


def parse(place: str | os.PathLike[str]) -> MongoPlace:
    """Gives the parts of a place in MongoDB. No server is asked, nor any name server.

    Raises:
        PlaceError: The place has no database or collection, or names that cannot be; what may be a password is not
            repeated.
    """
    text = os.fspath(place)
    scheme, separator, rest = text.partition("://")
    if not is_mongo(text):
        raise PlaceError(f"{_FORM}, got another scheme ({scheme + separator})")
    before_query, _, query = rest.partition("?")
    authority, slash, path = before_query.partition("/")
    if "@" in path or "/" in path:
        # An unescaped password; or a place with two paths. What is shown could be a part of the password.
        raise PlaceError(f"{_FORM}; in a user name or password '/', '@' and ':' must be escaped (%2F, %40, %3A)")
    hosts = authority.rpartition("@")[2]
    if not hosts:
        raise PlaceError(f"{_FORM}, got one without a host")
    shown_server = f"{scheme.lower()}://{hosts}/"
    database, dot, collection = path.partition(".")
    if not slash or not database:
        raise PlaceError(f"{shown_server} names no database and no collection: {_FORM}")
    if not dot or not collection:
        raise PlaceError(f"{shown_server}{database} names no collection: {_FORM}, such as {shown_server}{path}.train")
    if _NOT_IN_DATABASE.search(database) or len(database.encode()) > 63:
        raise PlaceError(f"no database can be named {database!r}: {_FORM}")
    if (
        "$" in collection
        or "\0" in collection
        or "%" in collection
        or collection.startswith(("system.", "."))
        or collection.endswith(".")
        or ".." in collection
    ):
        raise PlaceError(f"no collection can be named {collection!r}: {_FORM}")
    if len(f"{database}.{collection}".encode()) + _LONGEST_SUFFIX > _MAX_NAMESPACE:
        raise PlaceError(f"the name {database}.{collection} is too long for a place in MongoDB")
    options = frozenset(part.partition("=")[0].lower() for part in query.split("&") if part)
    return MongoPlace(text, database, collection, f"{shown_server}{database}.{collection}", options)
