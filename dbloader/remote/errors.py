"""Say in plain words what object storage has answered.

A message of obstore has the whole answer of the server and may have signed URLs, so no message repeats it. What is
taken from it are a status, a code, and the kind of the failure. For the same reason errors are raised without it, as
"from None".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dbloader.errors import StoreAccessError, StoreError, StoreNotFoundError, StoreUnreachableError

if TYPE_CHECKING:
    from dbloader.remote.places import RemotePlace

_STATUS = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
# The services of a cloud that give a machine's own credentials: tried when the environment has none.
_METADATA_SERVICE = re.compile(r"169\.254\.|metadata\.google|token request|/oauth2/")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if they are temporary)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class ObjectChangedError(StoreError):
    """The object is not the one that was listed."""


class BucketNotFoundError(StoreNotFoundError):
    """Not only the object is missing, but its bucket."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an answer; 0 if none came."""
    found = _STATUS.search(str(error))
    return int(found[1] or found[2]) if found else 0


def is_temporary(error: BaseException) -> bool:
    """Return whether the same request may succeed later: too many requests, a failure of the server or the network."""
    status = status_of(error)
    return status in (408, 429) or status >= 500 or (not status and "HTTP error" in str(error))


def translate(error: BaseException, place: RemotePlace, key: str = "") -> StoreError:
    """Return the error of dbloader for one of obstore, about an object below a place."""
    text, status = str(error), status_of(error)
    code = found[1] if (found := _CODE.search(text)) else ""
    where, bucket = "/".join(filter(None, (str(place), key))), f"{place.scheme}://{place.bucket}"
    how = f" ({', '.join(filter(None, (str(status or ''), code)))})" if status else ""
    wanted = _CREDENTIALS.get(place.scheme, "")
    if _METADATA_SERVICE.search(text) or "Account must be specified" in text:
        return StoreAccessError(f"{bucket}: no credentials were found: set {wanted}")
    if "service account" in text:
        return StoreAccessError(f"{bucket}: the file of credentials cannot be read: set {wanted} to its path")
    if code in _EXPIRED:
        return StoreAccessError(f"{where}: the credentials have expired{how}: renew them, and set {wanted}")
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return BucketNotFoundError(f"there is no bucket {bucket}{how}{_endpoint(place)}")
    if status in (401, 403):
        return StoreAccessError(
            f"{where}: access is refused{how}: the credentials{f' in {wanted}' if wanted else ''} are wrong, or do not "
            "allow this"
        )
    if status == 412:
        return ObjectChangedError(f"{where} was changed after it was listed")
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return StoreNotFoundError(f"{where} does not exist{how}")
    if status in (408, 429) or status >= 500:
        return StoreUnreachableError(f"{where}: the server is overloaded or fails{how}: try again later")
    if status:
        return StoreError(f"{where}: the server refuses the request{how}")
    if "dns error" in text:
        return StoreUnreachableError(f"{where}: the name of the server is unknown{_endpoint(place)}")
    if "builder error" in text:
        return StoreAccessError(f"{where}: the address of the server cannot be used{_endpoint(place)}")
    if "kind: Connect" in text:
        return StoreUnreachableError(f"{where}: no server answers{_endpoint(place)}")
    if "kind: Timeout" in text or "timed out" in text:
        return StoreUnreachableError(f"{where}: the server answered too late{_endpoint(place)}")
    if "HTTP error" in text or "kind: " in text:
        return StoreUnreachableError(f"{where}: the connection was cut{_endpoint(place)}")
    return StoreError(f"{where}: {text.partition('Debug source')[0].partition('http')[0].strip()[:200] or 'it failed'}")


def _endpoint(place: RemotePlace) -> str:
    return f" at {place.server.rpartition('@')[2]} (AWS_ENDPOINT_URL)" if place.scheme == "s3" and place.server else ""
