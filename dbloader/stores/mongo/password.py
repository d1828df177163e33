"""Take the password of a place that names only a user from the environment or from a private file."""

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


def add_password(place: MongoURI) -> MongoURI:
    """Return a place with the password of its user, if it has none and the environment gives one."""
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
        if path.stat().st_mode & 0o077:
            raise StoreAccessError(
                f"{path}, the file of {PASSWORD_FILE}, may be read by others than its owner: chmod 600 {path}"
            )
        return path.read_text().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise StoreAccessError(f"{path}, the file of {PASSWORD_FILE}, cannot be read: it is no text") from error
    except OSError as error:
        if isinstance(error, StoreAccessError):
            raise
        raise StoreAccessError(f"{path}, the file of {PASSWORD_FILE}, cannot be read: {error.strerror}") from error
