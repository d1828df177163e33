"""The attacks in the table of docs/viewer.md, against the running server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import select
import socket
from contextlib import suppress
from pathlib import Path

import pytest

import dbloader.ext.viewing
from tests.ext.viewing.conftest import Opened
from tests.support.images import WAIT_S
from tests.support.viewer import Answer, ask, viewer

STYLE = hashlib.sha256((Path(dbloader.ext.viewing.__file__).parent / "static/style.css").read_bytes()).digest()
CSP = (
    f"default-src 'none'; script-src 'self'; style-src 'sha256-{base64.b64encode(STYLE).decode()}'; "
    "img-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
FOREIGN = ("Sec-Fetch-Site: cross-site",)
LINK_OF_ANOTHER_PAGE = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")


def check_refused(answer: Answer, message: str, status: int = 403) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-security-policy"] == CSP
    if answer.headers["content-type"].startswith("text/html"):  # the message is for a person
        assert b"<h1>The viewer is not open in this browser</h1>" in answer.body
        assert re.search(message, answer.body.decode())
    else:
        assert re.search(message, json.loads(answer.body)["error"])
    assert "set-cookie" not in answer.headers


def new_link(opened: Opened) -> str:
    """Open the used link in another browser, and return the path of the new link that the viewer prints."""
    check_refused(opened.ask(path_of(opened.viewer.link), known=False), "used before, and works only once")
    line = opened.viewer.next_line()
    assert line.startswith("A used link was opened in another browser. Open this new link instead: http://127.0.0.1:")
    return path_of(line)


def path_of(link: str) -> str:
    return re.sub(".*http://[^/]*", "", link)


# The link


def test_known_browser_gets_the_page_and_the_data(opened: Opened) -> None:
    assert opened.ask("/").body.startswith(b"<!doctype html>")
    assert [store["records"] for store in json.loads(opened.ask("/api/stores").body)] == [4, 4]


def test_used_link_redirects_its_own_browser_and_keeps_the_query(opened: Opened) -> None:
    answer = opened.ask(f"{path_of(opened.viewer.link)}&view=record&q=a%20b%26c&q=%F0")
    assert (answer.status, answer.headers["location"]) == (303, "/?view=record&q=a%20b%26c&q=%F0")
    assert "set-cookie" not in answer.headers
    assert opened.ask(path_of(opened.viewer.link)).headers["location"] == "/?view=overview"


def test_used_link_is_refused_and_the_new_printed_link_works_once(opened: Opened) -> None:
    link = new_link(opened)
    # There is only one new link at a time, no matter how often the used link is tried.
    check_refused(opened.ask(path_of(opened.viewer.link), known=False), "used before, and works only once")
    first = opened.ask(link, known=False)
    assert first.status == 303
    assert first.headers["set-cookie"].startswith(opened.cookie)
    assert link not in (newer := new_link(opened))
    check_refused(opened.ask(link, known=False), "used before, and works only once")
    assert opened.ask(newer, known=False).status == 303


def test_head_request_or_foreign_host_does_not_use_up_a_link(opened: Opened) -> None:
    link = new_link(opened)
    assert opened.ask(link, method="HEAD", known=False).status == 403
    check_refused(ask(opened.viewer.port, link, host="evil.example"), "only to its own name")
    assert opened.ask(link, known=False).status == 303


@pytest.mark.parametrize("token", ["", "x", "%00", "%FF", "%C3%A9", "A" * 43, "token"])
def test_wrong_token_is_refused(opened: Opened, token: str) -> None:
    check_refused(opened.ask(f"/?token={token}".encode(), known=False), "not known")


def test_token_is_valid_only_in_the_link(opened: Opened) -> None:
    link = new_link(opened)
    token = link.partition("?")[2]
    for path in ("/api/stores", "/static/app.js", "//", "/index.html"):
        check_refused(opened.ask(f"{path}?{token}", known=False), "not known")
    check_refused(opened.ask("/", f"Cookie: {token}", known=False), "not known")
    assert opened.ask(link, known=False).status == 303


def test_first_response_has_the_style_sheet_and_names_all_modules(opened: Opened) -> None:
    page, static = opened.ask("/").body.decode(), Path(dbloader.ext.viewing.__file__).parent / "static"
    assert (static / "style.css").read_text() in page
    named = re.findall(r'"modulepreload" href="/static/(\w+\.js)"', page)
    assert {*named} == {path.name for path in static.glob("*.js")}


@pytest.mark.parametrize("path", ["/", "/api/stores", "/static/app.js", "/image/0/0", "/thumb/0/0", "/none", "/?token"])
def test_request_without_cookie_is_refused(opened: Opened, path: str) -> None:
    check_refused(opened.ask(path, known=False), "not known here: open the link that dbloader view printed")


def test_wrong_cookie_is_refused(opened: Opened) -> None:
    name, _, value = opened.cookie.partition("=")
    wrong = (f"{name}=", f"{name}={value[:-1]}", f"{name}={value}x", f"x{name}={value}", f"{name}=\xe9", name, "=;,")
    for cookie in wrong:
        check_refused(opened.ask("/", f"Cookie: {cookie}", known=False), "not known")
    assert name == f"dbloader-{opened.viewer.port}"
    assert opened.ask("/", f'Cookie: a=1; b="; {name}={value}; {{c}}=2', known=False).status == 200


# Host names that lead to this machine


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:{port}", "localhost.evil.example", "127.0.0.1.nip.io:{port}",
        "localhost:{port}@evil.example", "evil.example@127.0.0.1", "127.0.0.1:{port}:80", "127.0.0.1:x",
        "127.0.0.1 evil", "", "localhost.", "0x7f.0.0.1", "2130706433", "127.1", "0.0.0.0", "[::]", "[::1", "::1",
        "[::1]x", "[::2]:{port}", "10.0.0.1:{port}", "[fe80::1%25lo]", "vm", "\xe9",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/stores"])
def test_foreign_host_is_refused_even_with_the_cookie(opened: Opened, host: str, path: str) -> None:
    port = opened.viewer.port
    check_refused(ask(port, path, f"Cookie: {opened.cookie}", host=host.format(port=port)), "only to its own name")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "[::1]", "127.8.9.1"])
def test_every_loopback_host_is_answered(opened: Opened, host: str) -> None:
    port = opened.viewer.port
    assert ask(port, "/", f"Cookie: {opened.cookie}", host=f"{host}:{port}").status == 200


def test_cookie_is_named_after_the_port_that_the_browser_sees(opened: Opened) -> None:
    # ssh may forward this port to another machine, whose viewer has already set a cookie.
    link = new_link(opened)
    assert ask(opened.viewer.port, link, host="localhost:9999").headers["set-cookie"].startswith("dbloader-9999=")


@pytest.mark.parametrize(
    "lines", [[], ["Host: 127.0.0.1", "Host: evil.example"], ["Host: evil.example", "Host: 127.0.0.1"]]
)
def test_request_with_no_host_or_two_is_refused(opened: Opened, lines: list[str]) -> None:
    assert ask(opened.viewer.port, "/", f"Cookie: {opened.cookie}", *lines, host=None).status == 400


def test_absolute_url_of_a_request_does_not_replace_its_host(opened: Opened) -> None:
    port = opened.viewer.port
    check_refused(ask(port, f"http://127.0.0.1:{port}/", f"Cookie: {opened.cookie}", host="evil.example"), "own name")
    assert opened.ask("http://evil.example/api/stores").status == 404


# Other pages


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "Same-Origin", "nonsense"])
@pytest.mark.parametrize("path", ["/", "/api/stores", "/static/app.js", "/image/0/0", "/thumb/0/0?px=160"])
def test_request_of_another_site_is_refused(opened: Opened, site: str, path: str) -> None:
    check_refused(opened.ask(path, f"Sec-Fetch-Site: {site}"), "another site")


@pytest.mark.parametrize("destination", ["iframe", "frame", "embed", "object", "image", "script", "empty", ""])
def test_page_is_refused_inside_another_page(opened: Opened, destination: str) -> None:
    lines = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", f"Sec-Fetch-Dest: {destination}")
    check_refused(opened.ask("/", *lines), "another site")


@pytest.mark.parametrize("path", ["/api/stores", "/image/0/0", "/listing/0?format=csv"])
def test_link_of_another_site_opens_only_the_page(opened: Opened, path: str) -> None:
    check_refused(opened.ask(path, *LINK_OF_ANOTHER_PAGE), "another site")
    assert opened.ask("/?q=cat", *LINK_OF_ANOTHER_PAGE).status == 200


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_request_of_the_page_or_the_address_bar_is_answered(opened: Opened, site: str) -> None:
    assert opened.ask("/api/stores", f"Sec-Fetch-Site: {site}").status == 200


def test_link_of_a_notebook_opens_the_page_without_a_cookie_at_first(opened: Opened) -> None:
    # When another page links here, browsers send no SameSite=Strict cookie, even after a redirect.
    link = new_link(opened)
    assert opened.ask(link, *LINK_OF_ANOTHER_PAGE, known=False).status == 303
    for path in ("/", link):
        again = opened.ask(path, *LINK_OF_ANOTHER_PAGE, known=False)
        assert (again.status, b'http-equiv="refresh" content="0"' in again.body) == (200, True)
    assert opened.ask(link, "Sec-Fetch-Site: same-origin").status == 303


# Methods and headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
@pytest.mark.parametrize("path", ["/", "/api/stores", "/nothing"])
def test_only_get_and_head_are_answered(opened: Opened, method: str, path: str) -> None:
    answer = opened.ask(path, "Origin: http://evil.example", "Content-Length: 0", method=method)
    check_refused(answer, "accepts only GET and HEAD", 405)
    assert answer.headers["allow"] == "GET, HEAD"


# Marks, the only change that requests can make


def change(opened: Opened, *lines: str, path: str = "/api/9/marks", known: bool = True) -> Answer:
    """Ask for a change of a store that does not exist, so nothing changes."""
    return opened.ask(path, "Content-Length: 0", *lines, method="POST", known=known)


def test_page_of_the_viewer_may_change_marks(opened: Opened) -> None:
    own = f"Origin: http://127.0.0.1:{opened.viewer.port}"
    for lines in (("Sec-Fetch-Site: same-origin",), (own,), (own, "Sec-Fetch-Site: same-origin")):
        assert b"s must be from 0 to 1, got 9" in change(opened, *lines).body


@pytest.mark.parametrize(
    "lines",
    [
        (), ("Sec-Fetch-Site: none",), ("Origin: null",), ("Origin: http://evil.example",), ("Origin: http://127.0.0.1:1",),
        ("Origin: https://127.0.0.1:{port}",), ("Origin: http://127.0.0.1:{port}", "Sec-Fetch-Site: none"),
    ],
)  # fmt: skip
def test_change_is_accepted_only_from_the_viewers_page(opened: Opened, lines: tuple[str, ...]) -> None:
    sent = [line.format(port=opened.viewer.port) for line in lines]
    check_refused(change(opened, *sent), "only the page of this viewer can do this")


@pytest.mark.parametrize("path", ["/api/0/marks", "/api/0/duplicates", "/api/0/leaks"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_viewer_refuses_a_large_body_without_reading_all_of_it(opened: Opened, path: str, *, is_chunked: bool) -> None:
    part, sent = b"x" * 2**16, 0
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{opened.viewer.port}\r\nCookie: {opened.cookie}\r\n"
    head += "Sec-Fetch-Site: same-origin\r\nConnection: close\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n" if is_chunked else f"Content-Length: {2**30}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", opened.viewer.port), timeout=WAIT_S) as connection:
        connection.sendall(head.encode())
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < 2**30 and not select.select([connection], [], [], 0)[0]:
                connection.sendall(b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part)
                sent += len(part)
        assert sent < 2**25  # the sockets have buffers
        assert connection.recv(2**16).startswith(b"HTTP/1.1 413 ")
    assert opened.ask("/api/stores").status == 200


def test_change_is_refused_for_the_reasons_that_refuse_any_request(opened: Opened) -> None:
    own = "Sec-Fetch-Site: same-origin"
    check_refused(change(opened, own, known=False), "not known here")
    for site in ("cross-site", "same-site"):
        check_refused(change(opened, f"Sec-Fetch-Site: {site}"), "a page of another site sent this request")
    lines = (f"Cookie: {opened.cookie}", own, "Content-Length: 0")
    foreign = ask(opened.viewer.port, "/api/0/marks", *lines, method="POST", host="evil.example")
    check_refused(foreign, "only to its own name")
    for path in ("/api/0/marks/", "/api/0/rows", "/api/x/marks", "/api/0/marks%0a", "//api/0/marks"):
        check_refused(change(opened, own, path=path), "accepts only GET and HEAD", 405)
    assert opened.ask("/api/0/marks").status == 405


def test_read_only_viewer_accepts_no_change(stores: tuple[Path, Path]) -> None:
    with viewer(stores[0], "--port", "0", "--read-only", DISPLAY="", WAYLAND_DISPLAY="") as running:
        at = f"127.0.0.1:{running.port}"
        cookie = ask(running.port, running.link.partition(at)[2], host=at).headers["set-cookie"].partition(";")[0]
        lines = (f"Cookie: {cookie}", "Sec-Fetch-Site: same-origin", "Content-Length: 0")
        for path in ("/api/0/marks", "/api/0/duplicates", "/api/0/leaks"):
            check_refused(ask(running.port, path, *lines, method="POST", host=at), "accepts only GET and HEAD", 405)
        found = json.loads(ask(running.port, "/api/stores", *lines[:2], host=at).body)
    assert found[0]["marks"]["why_not"] == "the viewer was started with --read-only"


def test_head_has_the_headers_of_get_and_no_body(opened: Opened) -> None:
    for path in ("/", "/api/stores", "/image/0/0"):
        whole, head = opened.ask(path), opened.ask(path, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert {**whole.headers, "date": ""} == {**head.headers, "date": ""}


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        ("/", (), 200), ("/static/app.js", (), 200), ("/api/stores", (), 200), ("/image/0/0", (), 200),
        ("/thumb/0/0?px=160", (), 200), ("/?token=x", (), 303), ("/nothing", (), 404), ("/image/0/9", (), 400),
        ("/image/0/x", (), 400), ("/api/stores/", (), 404), ("/", FOREIGN, 403), ("/", ("Origin: null",), 200),
        ("/api/stores", ("Origin: http://evil.example",), 200),
    ],
)  # fmt: skip
def test_response_has_only_the_documented_headers(
    opened: Opened, path: str, lines: tuple[str, ...], status: int
) -> None:
    answer = opened.ask(path, *lines)
    assert answer.status == status
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in answer.headers if name.startswith(("access-control", "server"))]
