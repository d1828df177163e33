"""Translate the errors of obstore into errors of dbloader.

A message of obstore contains the whole answer of the server, perhaps with signed URLs. So a translated message contains
only the status, the code and the kind of the failure. Errors are raised "from None", which hides obstore's message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dbloader.errors import StoreAccessError, StoreError, StoreNotFoundError, StoreUnreachableError

if TYPE_CHECKING:
    from dbloader._places import RemotePlace

_STATUS = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
# Without credentials in the environment, obstore asks a service of the cloud. The first four texts mean that the
# service failed. The fifth means that no account is named. The last two mean that credentials are unreadable.
_NO_CREDENTIALS = re.compile(
    r"169\.254\.|metadata\.google|token request|/oauth2/|Account must be specified|service account|Invalid Access Key"
)
# A message of ``ProfileCredentials``, which obstore's message contains.
_NO_PROFILE = re.compile(r"the profile .* \(AWS_PROFILE\) gives no credentials: .* failed: \w+")
_LASTING = (501, 505, 507, 508, 510, 511)  # such as "not implemented" or "no room": a repeated request fails again
_TEMPORARY = re.compile("HTTP error|invalid list response")  # errors without a status: no answer, an incomplete list
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_OTHER_REGION = re.compile("redirect without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if they are temporary)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (the path of a file)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_NAMES_SERVER = {"s3": "AWS_REGION", "az": "AZURE_STORAGE_ACCOUNT_NAME"}
# Each of these texts in obstore's message means that no server answered. If several occur, the last is most precise.
_UNANSWERED = re.compile("dns error|builder error|kind: Connect|kind: Timeout|HTTP error")


class ObjectChangedError(StoreError):
    """The object was changed after it was listed."""


class NotWholeError(StoreError):
    """No answer had the size and the MD5 that the server stated."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status in an error; 0 if the error contains none."""
    found = _STATUS.search(str(error))
    return int(found[1] or found[2]) if found else 0


def is_temporary(error: BaseException) -> bool:
    """Return whether the same request may succeed later, for example after the network has failed."""
    if status := status_of(error):
        return status in (408, 429) or (status >= 500 and status not in _LASTING)
    return bool(_TEMPORARY.search(str(error)))


def translate(error: BaseException, place: RemotePlace, key: str = "") -> StoreError:
    """Return dbloader's error for an error of obstore. ``key`` is the object's key below the URL ``place``."""
    text, status = str(error), status_of(error)
    code = found[1] if (found := _CODE.search(text)) else ""
    where, bucket = "/".join(filter(None, (str(place), key))), f"{place.scheme}://{place.bucket}"
    how = f" ({', '.join(filter(None, (str(status or ''), code)))})" if status else ""
    wanted = _CREDENTIALS.get(place.scheme, "")
    if no_profile := _NO_PROFILE.search(text):
        return StoreAccessError(f"{bucket}: {no_profile[0]}")
    if _NO_CREDENTIALS.search(text):
        return StoreAccessError(f"{bucket}: no valid credentials were found: set {wanted}")
    if place.scheme == "s3" and _OTHER_REGION.search(text):
        return StoreAccessError(f"{bucket} is in another region{how}: set AWS_REGION to its region")
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return StoreError(f"there is no bucket {bucket}{how}{_server(place)}")
    if code == "RequestTimeTooSkewed":
        return StoreAccessError(f"{where}: access is refused{how}: set the clock of this machine")
    if status in (401, 403) or code in _EXPIRED:
        return StoreAccessError(
            f"{where}: access is refused{how}: the credentials{f' in {wanted}' if wanted else ''} are wrong or have "
            "expired, or do not allow this"
        )
    if status == 412:
        return ObjectChangedError(f"{where} was changed after it was listed")
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return StoreNotFoundError(f"{where} does not exist{how}")
    if "Could not parse path" in text:
        return StoreNotFoundError(f"{where} does not exist: this is not a valid key in object storage")
    if status and is_temporary(error):
        return StoreUnreachableError(f"{where}: the server is overloaded or fails{how}: try again later")
    if status:
        hint = ": dbloader needs a server with conditional puts (docs/object-storage.md)" if status == 501 else ""
        return StoreError(f"{where}: the server refuses the request{how}{hint}")
    if signs := _UNANSWERED.findall(text):
        return StoreUnreachableError(f"{where}: no server answers{_server(place)}: {signs[-1]}")
    return StoreError(f"{where}: {text.partition('Debug source')[0].partition('http')[0].strip()[:200] or 'it failed'}")


def _server(place: RemotePlace) -> str:
    """Return the end of a message: the server's address, or the environment variable that determines the server."""
    if place.scheme == "s3" and place.server:
        return f" at {place.server.rpartition('@')[2]} (AWS_ENDPOINT_URL)"
    return f" ({_NAMES_SERVER[place.scheme]} determines the server)" if place.scheme in _NAMES_SERVER else ""
