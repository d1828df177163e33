"""The password of a place that names only a user: from the environment, or a file that only its owner may read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

from dbloader.errors import StoreAccessError

if TYPE_CHECKING:
    from dbloader.stores.mongo.uri import MongoURI

PASSWORD = "DBLOADER_MONGODB_PASSWORD"
PASSWORD_FILE = "DBLOADER_MONGODB_PASSWORD_FILE"


def with_password(place: MongoURI) -> MongoURI:
    """Return a place with the password of its user, if the place itself has none and the environment has one.

    Raises:
        StoreAccessError: The file that the environment names cannot be read, or others can read it too.
    """
    user, password = place.credentials
    if not user or password is not None or not place.takes_password:
        return place
    found = os.environ.get(PASSWORD)
    if found is None and (file := os.environ.get(PASSWORD_FILE)):
        found = _read(Path(file))
    if found is None:
        return place
    scheme, _, rest = place.uri.partition("://")
    return place._replace(uri=f"{scheme}://{user}:{quote_plus(found)}@{rest.partition('@')[2]}")


def _read(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise StoreAccessError(
                f"{path}, the file of {PASSWORD_FILE}, may be read by others than its owner: chmod 600 {path}"
            )
        return path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, StoreAccessError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StoreAccessError(f"{path}, the file of {PASSWORD_FILE}, cannot be read: {reason}") from error
