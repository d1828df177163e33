"""The routes: what they return and refuse, how many images they decode at a time, and stores that disappear."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn

from dbloader import convert, copy_store
from dbloader._machine import cpu_count
from dbloader.ext.viewing import summary
from dbloader.ext.viewing.app import ROUTES, Route, ViewerRequest, ViewerState, create_app
from dbloader.ext.viewing.selection import Selections
from dbloader.stores.open import open_store
from tests.ext.viewing.conftest import Opened
from tests.support.images import WAIT_S, plant_photos
from tests.support.viewer import ask

STORES = "s must be from 0 to 1, got 2"
HUGE = "9" * 5000  # more digits than Python converts to an int


@contextmanager
def served(state: ViewerState, *routes: Route) -> Iterator[tuple[int, list[str]]]:
    """Serve an application without its guard. Yield the port, and the paths of the requests that have begun."""
    app, begun = create_app(state, routes or ROUTES), []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await app(scope, receive, send)

    config = uvicorn.Config(counted, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield listening.getsockname()[1], begun
        finally:
            server.should_exit = True
            thread.join()


# Paths and values


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/static/../guard.py", "/static/../../../etc/passwd", "/static/..%2fguard.py",
        "/static/%2e%2e/guard.py", "/static//etc/passwd", "/static/%2Fetc%2Fpasswd", "/static/%252e%252e%252fguard.py",
        "/static/..\\guard.py", "/static/..%5cguard.py", "/static/", "/static", "/static/.", "/static/app.js%00.html",
        "/static/app.js/", "/static/APP.JS", "/static/guard.py", "file:///etc/passwd", "/file:///etc/passwd",
        "//etc/passwd", "/image/0/0/../../../etc/passwd", "/image/0", "/etc/passwd", "/%00", "/%FF%FE",
        "/" + "a" * 5000, "/" + "a/" * 5000, "/favicon.ico",
    ],
)  # fmt: skip
def test_unknown_path_gets_status_404(opened: Opened, path: str) -> None:
    answer = opened.ask(path)
    assert (answer.status, json.loads(answer.body)) == (404, {"error": "nothing is here"})


NOT_NUMBERS = [
    *("", "-1", "x", "1.0", "1e3", "0x1", "NaN", "None", "%00", "1%00", "%FF", "../1", "0;1", "9" * 20, HUGE),
]


@pytest.mark.parametrize("number", NOT_NUMBERS)
@pytest.mark.parametrize(
    "path", ["/image/0/{}", "/thumb/{}/0", "/api/{}/select", "/api/0/rows?start={}", "/image/0/0?field={}"]
)
def test_value_that_is_not_a_number_is_refused_in_one_line(opened: Opened, path: str, number: str) -> None:
    answer = opened.ask(path.format(number))
    if path.endswith("field={}") and number == "":
        assert answer.status == 200  # an empty number means that no field is requested
        return
    assert answer.status in (400, 404)
    error = json.loads(answer.body)["error"]
    assert "bug" not in error
    assert len(error) < 300


@pytest.mark.parametrize(
    ("path", "error"),
    [
        *((path, "no record 4 in ") for path in ("/image/0/4", "/thumb/1/4", "/api/0/record/4")),
        *((path, STORES) for path in ("/image/2/0", "/thumb/2/0", "/api/2/select", "/api/2/record/0")),
        ("/api/0/rows?q=&start=0&count=501", "start must be 0 or more and count from 0 to 500, got 0 and 501"),
        ("/api/0/summary?q=width%3Cnan", "query, letter 1: width< needs a number"),
        *(
            (f"/thumb/0/0?window={text}", "window must be two numbers")
            for text in ("5", "5,1", "1,1", "1,inf", "a,b", ",")
        ),
        ("/api/0/select?q=%22", "query, letter 1: a quote is opened and not closed"),
        *((path, "") for path in ("/thumb/1/1?px=160", "/thumb/1/2?px=160", "/thumb/1/3?px=320", "/image/1/1")),
    ],
)
def test_invalid_request_gets_a_sentence(opened: Opened, path: str, error: str) -> None:
    answer = opened.ask(path)
    (sentence,) = json.loads(answer.body).values()
    assert (answer.status, sentence[: len(error)]) == (400, error)


@pytest.mark.parametrize(
    "query",
    ["q=%FF%FE", "q=%00", "q=%ED%A0%80", "q=<script>alert(1)</script>", "q=" + "a" * 60_000, "q=1&q=2", "&&=&", "q=%"],
)
@pytest.mark.parametrize("path", ["/", "/api/stores", "/api/0/select", "/api/0/summary"])
def test_any_query_is_answered_or_refused_in_one_line(opened: Opened, path: str, query: str) -> None:
    answer = opened.ask(f"{path}?{query}")
    assert answer.status in (200, 400)
    assert b"bug" not in answer.body
    assert answer.headers["content-type"] == ("text/html; charset=utf-8" if path == "/" else "application/json")


@pytest.mark.parametrize("target", ["/?q=" + "a" * 1_000_000, "/?" + "a=1&" * 250_000, b"/\xff", b"/?q=\xe9", b"/\x00"])
def test_server_refuses_a_malformed_request_and_answers_the_next(opened: Opened, target: str | bytes) -> None:
    with suppress(ConnectionResetError):  # the server stops reading a request that is too long
        assert opened.ask(target).status == 400
    assert opened.ask("/api/stores").status == 200


def test_bug_shows_one_sentence_and_prints_a_traceback() -> None:
    printed: list[str] = []
    state = ViewerState([], printed.append)
    with served(state, Route("/bug", lambda _: 1 / 0)) as (port, _):
        answer = ask(port, "/bug")
    error = "this is a bug of dbloader: ZeroDivisionError: division by zero"
    assert (answer.status, json.loads(answer.body)) == (500, {"error": error})
    assert (printed[0], printed[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")


def test_routes_accept_only_integers_and_fixed_names() -> None:
    for path in (route.path for route in ROUTES):
        assert {part for part in path.split("/") if part.startswith("{")} <= {"{s}", "{index}", "{name}"}
        assert ("{name}" in path) == path.startswith("/static/")


# Selections


def get(opened: Opened, path: str) -> Any:
    answer = opened.ask(path)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_routes_of_a_selection_return_results_of_the_summary_module(opened: Opened, stores: tuple[Path, Path]) -> None:
    for number, place in enumerate(stores):
        with open_store(place) as store:
            selections = Selections(store)
            for text in ("", "jpg width>1", "-jpg", "label:none index:0-2"):
                q = quote(text)
                assert get(opened, f"/api/{number}/select?q={q}") == {"count": len(selections.select(text))}
                assert get(opened, f"/api/{number}/rows?q={q}&start=1&count=2") == summary.rows(selections, text, 1, 2)
                plain = json.loads(json.dumps(summary.count(selections, text)))
                assert get(opened, f"/api/{number}/summary?q={q}") == plain
    assert get(opened, "/api/0/position?q=-index:1&index=1") == {"position": 1}
    assert get(opened, "/api/0/position?q=-index:1&index=9") == {"position": None}


def test_copy_reads_a_downloaded_listing(opened: Opened, stores: tuple[Path, Path], tmp_path: Path) -> None:
    answer = opened.ask("/listing/0?q=index:1,3")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="selection.csv"'
    (tmp_path / "some.csv").write_bytes(answer.body)
    copy_store(stores[0], tmp_path / "copy.lmdb", select=tmp_path / "some.csv")
    with open_store(stores[0]) as store, open_store(tmp_path / "copy.lmdb") as copy:
        assert [*copy.names()] == [store.name(1), store.name(3)]


# Limits on concurrent work


class Blocked:
    """A route that waits until it may end."""

    def __init__(self) -> None:
        self.entered: list[int] = []
        self.may_end = threading.Event()

    def __call__(self, request: ViewerRequest) -> None:
        self.entered.append(request.integer("index"))
        assert self.may_end.wait(WAIT_S)


@pytest.fixture
def blocked() -> Iterator[tuple[Blocked, int, list[str]]]:
    """A server with a route /decoded/NUMBER that waits, and a route /other.

    Yield the port and the paths of begun requests.
    """
    route = Blocked()
    routes = (Route("/decoded/{index}", route, decodes=True), Route("/other", lambda _: {}))
    with served(ViewerState([]), *routes) as (port, begun):
        yield route, port, begun


def wait_until_begun(port: int, found: list[Any], count: int) -> None:
    """Wait until a list has some entries. The other route answers in the meantime."""
    while sum(path != "/other" for path in found) < count:
        assert ask(port, "/other").status == 200


def test_decoding_uses_one_thread_per_core_and_delays_no_other_route(blocked: tuple[Blocked, int, list[str]]) -> None:
    (route, port, begun), cores = blocked, cpu_count()
    with ThreadPoolExecutor(3 * cores) as clients:
        answers = [clients.submit(ask, port, f"/decoded/{n}") for n in range(3 * cores)]
        wait_until_begun(port, begun, 3 * cores)
        wait_until_begun(port, route.entered, cores)
        assert len(route.entered) == cores
        route.may_end.set()
        assert {answer.result().status for answer in answers} == {200}
    assert sorted(route.entered) == [*range(3 * cores)]


def test_image_is_not_decoded_after_its_client_disconnects(blocked: tuple[Blocked, int, list[str]]) -> None:
    (route, port, begun), cores = blocked, cpu_count()
    with ThreadPoolExecutor(cores) as clients:
        answers = [clients.submit(ask, port, f"/decoded/{n}") for n in range(cores)]
        wait_until_begun(port, route.entered, cores)
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(b"GET /decoded/999 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while "/decoded/999" not in begun:
                assert ask(port, "/other").status == 200
        assert ask(port, "/other").status == 200  # by now the server has noticed the disconnection
        route.may_end.set()
        assert {answer.result().status for answer in answers} == {200}
        assert ask(port, "/decoded/5").status == 200
    assert 999 not in route.entered


# Stores that disappear


def note(port: int) -> Any:
    return json.loads(ask(port, "/api/0/note").body)["note"]


@pytest.mark.parametrize("kind", ["lmdb", "mongodb"])
def test_replaced_store_stays_readable_and_the_page_shows_a_note(tmp_path: Path, mongo_uri: str, kind: str) -> None:
    place = str(tmp_path / "a.lmdb") if kind == "lmdb" else mongo_uri
    convert(plant_photos(tmp_path / "old", 3), place)
    with open_store(place) as store, served(ViewerState([store])) as (port, _):
        before = [ask(port, f"/image/0/{index}").body for index in range(3)]
        assert note(port) is None
        convert(plant_photos(tmp_path / "new", 5, width=80), place, overwrite=True)
        assert (
            note(port)
            == f"This page shows {store.place} as it was when the viewer was started, but another store is there now."
        )
        assert [ask(port, f"/image/0/{index}").body for index in range(3)] == before
        assert ask(port, "/image/0/3").status == 400
        if place.endswith(".lmdb"):
            Path(place).unlink()
            assert str(note(port)).endswith("no store is there now.")
            assert ask(port, "/image/0/2").body == before[2]
