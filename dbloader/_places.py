"""Find out what kind of place a text names: a path, MongoDB, or object storage such as ``s3://bucket/train.lmdb``.

Importing this module imports neither obstore nor PyMongo.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from dbloader.errors import PlaceError

WRITABLE = ("s3", "gs", "az")
_PLACE = re.compile(r"(s3|gs|az|https?):/(/?)([^/]*)/*(.*)", re.DOTALL | re.IGNORECASE)
_BUCKET = re.compile(r"[\w.-]+", re.ASCII)
# The beginning of a MongoDB connection string, even if it is mistyped.
_LIKE_MONGO = re.compile(r"mongo(db)?(\+srv)?(:|//)", re.IGNORECASE)
_STORE = "the path of an LMDB file or mongodb://host/database.collection"
_WEB_SERVER = re.compile(r"([\w.-]+|\[[\w.:]+\])(:\d+)?", re.ASCII)


class RemotePlace(NamedTuple):
    """A URL of object storage, split into its parts.

    Attributes:
        scheme: ``"s3"``, ``"gs"``, ``"az"``, ``"http"`` or ``"https"``.
        bucket: The bucket or container; the server for ``http`` and ``https``.
        key: The prefix of all keys below the URL, without slashes at its ends.
    """

    scheme: str
    bucket: str
    key: str

    @property
    def server(self) -> str:
        """URL of the server: from the place (http, https) or the environment (s3); "" for the provider's own server."""
        if self.scheme not in WRITABLE:
            return f"{self.scheme}://{self.bucket}"
        if self.scheme == "s3":
            return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        return ""

    def __str__(self) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.key) if part)


def is_mongo(place: object) -> bool:
    """Return whether a place begins like a MongoDB URI. Mistyped URIs count too, so messages hide their passwords."""
    return isinstance(place, str) and _LIKE_MONGO.match(place) is not None


def is_remote(place: object) -> bool:
    """Return whether a place begins like a URL of object storage, such as ``s3:/``. The rest may be mistyped."""
    return isinstance(place, (str, os.PathLike)) and bool(_PLACE.match(str(place)))


def parse_place(place: str | os.PathLike[str]) -> RemotePlace:
    """Split a URL of object storage into scheme, bucket and key.

    Raises:
        PlaceError: The URL is mistyped, names no bucket, or contains credentials. The message shows no credentials.
    """
    found = _PLACE.fullmatch(os.fspath(place))
    if found is None:
        raise PlaceError("a place in object storage must be s3://bucket/key, gs://bucket/key or az://container/key")
    scheme, slash, bucket, key = found[1].lower(), *found.groups()[1:]
    web = scheme not in WRITABLE
    allowed = (_WEB_SERVER if web else _BUCKET).fullmatch(bucket)
    # About half of AWS's secret keys contain a slash, as in s3://KEY:ab/cd@bucket. So look for '@' after a slash, too.
    secret = "@" in bucket or (":" in bucket and not allowed) or "@" in f"{bucket}/{key}".partition(":")[2]
    if secret or (web and "?" in bucket + key):
        raise PlaceError(
            f"a place ({scheme}://) must not contain credentials: give them in environment variables (see "
            "docs/object-storage.md)"
        )
    if not slash or not bucket:
        what = f"{scheme}:///{key} names no bucket" if slash else f"{scheme}:/{bucket}/{key} is mistyped"
        raise PlaceError(f"{what}: a place in object storage is {scheme}://bucket/key")
    if not allowed:  # obstore would raise a Rust panic
        raise PlaceError(f"{scheme}://{bucket}/{key}: {bucket!r} is not the name of a bucket or server")
    return RemotePlace(scheme, bucket, "/".join(filter(None, key.split("/"))))


def checked_path(place: str | os.PathLike[str]) -> str:
    """Check that a place is a file path, and return it. Error messages show no password of a URI."""
    if not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"a place must be {_STORE}, got {type(place).__name__}")
    path = os.fspath(place)
    if not path.strip():
        raise PlaceError(f"a place must be {_STORE}, got {path!r}")
    if is_mongo(path):
        raise PlaceError("expected the path of a file, got a place in MongoDB (MongoDataset reads from MongoDB)")
    if is_remote(path):
        raise PlaceError(
            f"{parse_place(path)} is in object storage, which this operation does not support: use dbloader convert "
            "--shards, dbloader copy or LMDBDataset(..., cache=FOLDER)"
        )
    if "://" in path:
        scheme = path.split("://", 1)[0]
        raise PlaceError(
            f"{scheme}:// is not a place that this version of dbloader supports; "
            f"give {_STORE}, or s3://, gs:// or az://bucket/key"
        )
    if path.startswith("-"):
        raise PlaceError(f"a place must be {_STORE}, got {path!r}, which looks like an option; for a file: ./{path}")
    return path


def path_beside(place: str, ending: str) -> Path:
    """Return the path of a store with ``ending`` added to its name. The place may end in a slash, or be "."."""
    path = Path(place) if Path(place).name.strip(".") else Path(place).resolve()
    return path.with_name(f"{path.name}{ending}")
