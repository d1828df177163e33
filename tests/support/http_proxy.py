"""An HTTP proxy in front of an S3 server. A test decides what happens to each request."""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from tests.support.object_store import HOST

SLOW_DOWN = (503, "SlowDown")
EXPIRED = (400, "ExpiredToken")
NOT_IMPLEMENTED = (501, "NotImplemented")
# Changes the headers and body of a response. The proxy sets Content-Length.
Change = Callable[[dict[str, str], bytes], tuple[dict[str, str], bytes]]


def shorten(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Leave out the second half of a body."""
    return headers, body[: len(body) // 2]


def flip(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Change one bit in the middle of a body."""
    middle = len(body) // 2
    return headers, body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]


def other_etag(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Replace the ETag by a value that only looks like an MD5, as S3 does for objects encrypted with KMS."""
    return headers | {"Etag": f'"{"0" * 32}"'}, body


def empty(headers: dict[str, str], body: bytes) -> tuple[dict[str, str], bytes]:
    """Leave out a whole body."""
    return headers, b""


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve a folder, without ETags. Yield the address of its folder ``files``."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((HOST, 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/files"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CUT, LOST = "send half of the answer, then cut the connection", "execute the request, and drop the answer"


class HTTPProxy:
    """A context manager that calls ``decide`` with the method and the path of each request, in any thread.

    ``decide`` may wait. It returns None to forward the request, ``CUT``, ``LOST``, a status and a code to answer with,
    or a `Change` of the answer. ``at`` is the proxy's own port, 0 for any. Without ``conditional_puts``, the proxy
    refuses a put with a condition, as older servers do. ``received`` and ``sent`` count the bytes of all requests and
    answers by path. ``ports`` lists the client's ports of all requests by path; each connection has another port.
    """

    def __init__(
        self,
        port: int,
        decide: Callable[[str, str], tuple[int, str] | str | Change | None],
        *,
        at: int = 0,
        conditional_puts: bool = True,
    ) -> None:
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                proxy._connections.add(self.connection)

            def _serve(self) -> None:
                proxy._serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - names of http.server

        self._target, self._decide = port, decide
        self._server = http.server.ThreadingHTTPServer((HOST, at), Handler)
        self._conditional_puts = conditional_puts
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._connections: set[socket.socket] = set()
        self.received, self.sent = Counter[str](), Counter[str]()
        self.ports = defaultdict[str, list[int]](list)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        for connection in [*self._connections]:
            _shut(connection)
        self._server.server_close()  # this waits for the server's threads

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.received[request.path.partition("?")[0]] += len(body)
        self.ports[request.path.partition("?")[0]].append(request.client_address[1])
        decided = self._decide(request.command, request.path)
        has_condition = "If-Match" in request.headers or "If-None-Match" in request.headers
        if request.command == "PUT" and has_condition and not self._conditional_puts:
            decided = NOT_IMPLEMENTED
        if isinstance(decided, tuple):
            status, code = decided
            answer = b"" if request.command == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
            headers = [("Content-Length", str(len(answer)))]
        else:
            server = http.client.HTTPConnection(HOST, self._target, timeout=60)
            try:
                server.request(request.command, request.path, body, dict(request.headers.items()))
                response = server.getresponse()
                status, answer, headers = response.status, response.read(), response.getheaders()
            finally:
                server.close()
        if callable(decided):
            changed, answer = decided(dict(headers), answer)
            headers = [*(changed | {"Content-Length": str(len(answer))}).items()]
        self.sent[request.path.partition("?")[0]] += len(answer)
        if decided == LOST:
            _shut(request.connection)
            request.close_connection = True
            return
        request.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                request.send_header(name, value)
        request.end_headers()
        request.wfile.write(answer[: len(answer) // 2] if decided == CUT else answer)
        if decided == CUT:
            _shut(request.connection)
            request.close_connection = True


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
