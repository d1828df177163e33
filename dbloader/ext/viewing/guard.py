"""Protect the viewer: answer only browsers that have opened a link. This module also reads the files of the page.

The HTML contains the style sheet, so a browser can draw the page after one response. The HTML also names all modules,
so the browser requests them at once. Over a slow connection, each further round trip would be visible. The font is
Inter, for Latin letters; the licence beside it is the SIL Open Font License.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FOLDER = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
# Hash of the style sheet, for a Content-Security-Policy. With this policy, a browser applies no other style sheet.
_STYLE_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
# File name -> (content, media type). All files are read at import, so no text of a request is used as a path.
STATIC = {
    path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES
}

_preloads = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in STATIC if name.endswith(".js"))
_html = STATIC["index.html"][0].replace(b"<style></style>", f"<style>{_STYLE}</style>\n{_preloads}".encode())
STATIC["index.html"] = _html, _TYPES[".html"]

HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src {_STYLE_SOURCE}; img-src 'self' blob:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_TOKEN = "token"
_FIRST = "view=overview"  # the query of the first page, if the link has none
_TOKEN_BYTES = 32
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<name>[0-9A-Za-z._-]+))(?::(?P<port>[0-9]{1,5}))?")
_NAVIGATION = ("navigate", "document")
_REQUEST_S = 10  # a request must arrive completely within this time; a browser needs far less
_CHANGES = re.compile("/api/[0-9]+/(marks|duplicates|leaks)")  # the only paths that accept POST
_OPEN = "open the link that dbloader view printed"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>dbloader</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>STYLE</style><main id="main"><div class="empty">
<h1>The viewer is not open in this browser</h1>
<p>WHY.</p>
<p>A link works in one browser. If yours was used before, the terminal where <code>dbloader view</code> runs shows a new
link. In a notebook, <code>viewer.url</code> is always an unused link.</p></div></main>
""".replace("STYLE", _STYLE)
# A browser that follows a link on another site does not send a SameSite=Strict cookie. This page loads itself again,
# and then the browser sends the cookie.
_RELOAD = '<!doctype html><meta http-equiv="refresh" content="0"><title>dbloader</title>'


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the form that the page expects: ``{"error": message}``."""
    return Response(json.dumps({"error": message}), status, headers, "application/json")


def _refusal(message: str, *, is_page: bool) -> Response:
    """Return the answer to a refused request: a page for a person, or an error for a program."""
    if not is_page:
        return error_response(403, message)
    return HTMLResponse(_PAGE.replace("WHY", message[0].upper() + message[1:]), 403)


class Guard:
    """An ASGI application that passes permitted requests to another application and refuses all other requests.

    The URL from ``link`` works once. It gives the browser a cookie, and each further request must contain this cookie.
    A second browser needs a new link. All answers, including errors, have the headers in ``HEADERS``.

    The ``Host`` of a request must be ``host``, where the server listens, or a loopback address. With ``is_public``, any
    IP address is valid. Without ``read_only``, the viewer's own page may send POST to three paths. One path sets marks.
    The others search for duplicates in a store and between stores. ``tell`` gets a message for the terminal if a
    browser opens a used link.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        is_public: bool,
        read_only: bool = False,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._app = app
        self._read_only = read_only
        self._is_public = is_public
        name = socket.gethostname() if host in ("0.0.0.0", "::") else host
        self._names = {"localhost", name.lower()}
        self._address = f"http://{f'[{name}]' if ':' in name else name}:{port}"
        self._tell = tell
        self._cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        self._token: str | None = None
        self._used: list[str] = []
        self._lock = threading.Lock()

    def link(self) -> str:
        """Return a URL that opens the page in one browser. Return a new URL after a browser has used the last one."""
        with self._lock:
            self._token = self._token or secrets.token_urlsafe(_TOKEN_BYTES)
            return f"{self._address}/?{_TOKEN}={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_RAW_HEADERS]}
            await send(message)

        refused = self._refuse(scope)
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the answer to a request that the application must not get; None if the request is permitted."""
        request = HTTPConnection(scope)
        host = self._checked_host(request.headers.getlist("host"))
        is_page = scope["path"] == "/"
        if host is None:
            return _refusal(f"this server answers only to its own name: {_OPEN}", is_page=is_page)
        is_change = scope["method"] == "POST" and not self._read_only and _CHANGES.fullmatch(scope["path"]) is not None
        if scope["method"] not in ("GET", "HEAD") and not is_change:
            return error_response(405, "this address accepts only GET and HEAD", {"Allow": "GET, HEAD"})
        is_foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        navigates = (request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")) == _NAVIGATION
        if is_foreign and not (is_page and navigates):
            return _refusal(f"a page of another site sent this request: {_OPEN}", is_page=is_page)
        if is_change and not _is_same_origin(request):
            return error_response(403, f"only the page of this viewer can do this: {_OPEN}")
        cookie = f"dbloader-{host['port'] or 80}"
        is_known = _equal(request.cookies.get(cookie, ""), self._cookie)
        token, rest = _take_token(scope["query_string"]) if is_page else (None, "")
        if token is not None and (is_known or (scope["method"] == "GET" and self._use(token))):
            headers = {"Location": f"/?{rest or _FIRST}", "Cache-Control": "no-store"}
            if not is_known:
                headers["Set-Cookie"] = f"{cookie}={self._cookie}; Path=/; HttpOnly; SameSite=Strict"
            return Response(status_code=303, headers=headers)
        if is_known:
            return None
        if is_foreign:
            return HTMLResponse(_RELOAD, headers={"Cache-Control": "no-store"})
        if token is None or not any(_equal(token, used) for used in self._used):
            return _refusal(f"this browser is not known here: {_OPEN}", is_page=is_page)
        if self._token is None:  # no unused link is left
            self._tell(f"A used link was opened in another browser. Open this new link instead: {self.link()}")
        return _refusal("this link was used before, and works only once: open the new link", is_page=is_page)

    def _checked_host(self, values: Sequence[str]) -> dict[str, Any] | None:
        match = _HOST.fullmatch(values[0]) if len(values) == 1 else None
        if match is None:
            return None
        host, address = match["ipv6"] or match["name"], None
        with suppress(ValueError):  # the host is a name, not an address
            address = ipaddress.ip_address(host)
        # Another site can make its own name point to this machine (DNS rebinding). So only known names are valid.
        valid = host.lower() in self._names or (address is not None and (self._is_public or address.is_loopback))
        return match.groupdict() if valid else None

    def _use(self, token: str) -> bool:
        with self._lock:
            if self._token is None or not _equal(token, self._token):
                return False
            self._used.append(self._token)
            self._token = None
            return True


def _is_same_origin(request: HTTPConnection) -> bool:
    """Return whether a page of this server sent a request."""
    # Over http, browsers send sec-fetch-site only to loopback addresses. Without this header, ``origin`` decides.
    site, origin = (request.headers.get(name) for name in ("sec-fetch-site", "origin"))
    return site == "same-origin" or (site is None and origin == f"http://{request.headers['host']}")


def _equal(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "backslashreplace"), wanted.encode())


def _take_token(query: bytes) -> tuple[str | None, str]:
    """Return (the token in a query or None, the rest of the query)."""
    parts = query.decode("latin-1").split("&")
    found = [part for part in parts if part.partition("=")[0] == _TOKEN]
    rest = "&".join(part for part in parts if part not in found)
    return (unquote(found[0].partition("=")[2]) if found else None), rest


class GuardedConnection(H11Protocol):
    """A connection that is closed if a request does not arrive completely within 10 s.

    uvicorn limits only the time between requests, not the time of a request. Without this class, unfinished requests
    from anyone could occupy all connections of the viewer.
    """

    _timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._timer = self.loop.call_later(_REQUEST_S, transport.close)

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # uvicorn stops its own timer here, even if the request is incomplete
        is_answering = (
            self.cycle is not None  # type: ignore[redundant-expr] # uvicorn sets it to None at first
            and not self.cycle.response_complete
        )
        if not is_answering:
            self._timer = self._timer or self.loop.call_later(_REQUEST_S, self.transport.close)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None
