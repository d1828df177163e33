"""The routes: what they refuse, how much they do at a time, and what happens when a store goes away."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from dbloader import convert
from dbloader._machine import cpu_count
from dbloader.stores.open import open_store
from dbloader.viewing.app import ROUTES, STATIC, create_app
from dbloader.viewing.request import Shared
from tests.support.images import WAIT_S, plant_photos
from tests.support.viewer import ask, browser, viewer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dbloader.viewing.request import ViewerRequest
    from tests.support.mongo import Mongod
    from tests.viewing.conftest import Opened

HUGE = "9" * 5000  # more digits than Python makes an int of


@contextmanager
def served(shared: Shared, *routes: Any) -> Iterator[tuple[int, list[str]]]:
    """Serve an application without its guard; yields the port, and the paths of the requests that have begun."""
    app, begun = create_app(shared, routes or ROUTES), []

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


# What reaches no route


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
def test_a_path_leads_nowhere_but_to_the_routes(opened: Opened, path: str) -> None:
    answer = opened.ask(path)
    assert (answer.status, json.loads(answer.body)) == (404, {"error": "nothing is here"})


@pytest.mark.parametrize(
    "number",
    [
        "-1",
        "x",
        "",
        "1.0",
        "1e3",
        "0x1",
        "+1",
        "%201",
        "1%20",
        "NaN",
        "None",
        "%00",
        "1%00",
        "%D9%A1",
        "%FF",
        HUGE,
        "9" * 20,
        "../1",
        "0;1",
    ],
)
@pytest.mark.parametrize(
    "path", ["/image/0/{}", "/thumb/{}/0", "/api/{}/select", "/api/0/rows?start={}", "/image/0/0?field={}"]
)
def test_what_is_no_number_is_one_line_and_never_a_bug(opened: Opened, path: str, number: str) -> None:
    answer = opened.ask(path.format(number))
    if path.endswith("field={}") and number == "":
        assert answer.status == 200  # a field that is not asked for
        return
    assert answer.status in (400, 404)
    error = json.loads(answer.body)["error"]
    assert "bug" not in error
    assert len(error) < 300


@pytest.mark.parametrize("path", ["/image/0/4", "/image/0/999999999999999", "/thumb/1/4", "/api/0/record/4"])
def test_a_record_that_is_not_there_is_named(opened: Opened, path: str) -> None:
    answer = opened.ask(path)
    assert answer.status == 404
    assert json.loads(answer.body)["error"].startswith(f"no record {path.rpartition('/')[2]} in ")


def test_a_store_that_is_not_there_is_named(opened: Opened) -> None:
    for path in ("/image/2/0", "/thumb/2/0", "/api/2/select", "/api/2/record/0", "/api/2/note"):
        answer = opened.ask(path)
        assert (answer.status, json.loads(answer.body)["error"]) == (400, "s must be an integer from 0 to 1, got '2'")


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
def test_what_is_too_long_or_no_request_is_refused_and_the_next_one_answered(
    opened: Opened, target: str | bytes
) -> None:
    with suppress(ConnectionResetError):  # it reads no more of what is too long
        assert opened.ask(target).status == 400
    assert opened.ask("/api/stores").status == 200


def test_a_bug_is_a_sentence_in_the_page_and_a_traceback_at_the_terminal() -> None:
    told: list[str] = []
    shared = Shared([], told.append)
    with served(shared, ("/bug", lambda _: 1 / 0, False)) as (port, _):
        answer = ask(port, "/bug")
    error = "this is a bug of dbloader: ZeroDivisionError: division by zero"
    assert (answer.status, json.loads(answer.body)) == (500, {"error": error})
    assert (told[0], told[-1]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")


def test_the_files_of_the_page_are_those_of_its_folder_and_of_known_types() -> None:
    assert {"index.html", "start.js", "style.css"} <= set(STATIC)
    assert {kind for _, kind in STATIC.values()} <= {
        "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml",
    }  # fmt: skip


def test_every_route_takes_only_integers_and_fixed_names() -> None:
    for path, _, _ in ROUTES:
        assert {part for part in path.split("/") if part.startswith("{")} <= {"{s}", "{index}", "{name}"}
        assert ("{name}" in path) == path.startswith("/static/")


# Hostile records


@pytest.mark.parametrize("index", [2, 3])
@pytest.mark.parametrize("lines", [(), ("Accept: image/svg+xml,text/html",), ("Sec-Fetch-Dest: image",)])
def test_svg_and_html_are_only_ever_saved(opened: Opened, index: int, lines: tuple[str, ...]) -> None:
    answer = opened.ask(f"/image/1/{index}", *lines)
    assert (answer.status, b"<script>" in answer.body) == (200, True)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers  # which its name would like to add


@pytest.mark.parametrize("path", ["/thumb/1/1?px=160", "/thumb/1/2?px=160", "/thumb/1/3?px=320", "/image/1/1"])
def test_what_is_no_image_is_a_sentence(opened: Opened, path: str) -> None:
    answer = opened.ask(path)
    assert (answer.status, [*json.loads(answer.body)]) == (422, ["error"])


# How much is done at a time


class Blocked:
    """A route that waits, and knows how many wait with it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.entered: list[int] = []
        self.inside = self.most = 0
        self.may_end = threading.Event()

    def __call__(self, request: ViewerRequest) -> None:
        with self.changed:
            self.entered.append(request.integer("index"))
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.changed.notify_all()
        assert self.may_end.wait(WAIT_S)
        with self.changed:
            self.inside -= 1

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.entered) >= count, WAIT_S)


def test_as_many_images_are_decoded_at_a_time_as_there_are_cores_and_other_answers_do_not_wait() -> None:
    blocked, cores = Blocked(), cpu_count()
    routes: Any = (("/decoded/{index}", blocked, True), ("/other", lambda _: {}, False))
    with served(Shared([]), *routes) as (port, begun), ThreadPoolExecutor(3 * cores) as clients:
        answers = [clients.submit(ask, port, f"/decoded/{n}") for n in range(3 * cores)]
        blocked.wait_for(cores)
        while sum(path != "/other" for path in begun) < 3 * cores:
            assert ask(port, "/other").status == 200
        assert ask(port, "/other").status == 200
        blocked.may_end.set()
        assert {answer.result().status for answer in answers} == {200}
    assert (blocked.most, sorted(blocked.entered)) == (cores, [*range(3 * cores)])


def test_what_nobody_waits_for_any_more_is_not_decoded() -> None:
    blocked, cores = Blocked(), cpu_count()
    routes: Any = (("/decoded/{index}", blocked, True), ("/other", lambda _: {}, False))
    with served(Shared([]), *routes) as (port, begun), ThreadPoolExecutor(cores) as clients:
        answers = [clients.submit(ask, port, f"/decoded/{n}") for n in range(cores)]
        blocked.wait_for(cores)
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(b"GET /decoded/999 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while "/decoded/999" not in begun:
                assert ask(port, "/other").status == 200
        assert ask(port, "/other").status == 200  # and by then it knows that the other one is gone
        blocked.may_end.set()
        assert {answer.result().status for answer in answers} == {200}
        assert ask(port, "/decoded/5").status == 200
    assert 999 not in blocked.entered


# Stores that go away


def note(port: int) -> str | None:
    found: str | None = json.loads(ask(port, "/api/0/note").body)["note"]
    return found


def test_an_lmdb_file_that_is_replaced_stays_as_it_was_and_the_page_can_say_so(tmp_path: Path) -> None:
    check_replaced(tmp_path, str(tmp_path / "a.lmdb"))


def test_a_store_on_a_server_that_is_replaced_stays_as_it_was_and_the_page_can_say_so(
    tmp_path: Path, mongo_uri: str
) -> None:
    check_replaced(tmp_path, mongo_uri)


def check_replaced(tmp_path: Path, place: str) -> None:
    convert(plant_photos(tmp_path / "old", 3), place)
    with open_store(place) as store, served(Shared([store])) as (port, _):
        before = [ask(port, f"/image/0/{index}").body for index in range(3)]
        assert note(port) is None
        convert(plant_photos(tmp_path / "new", 5, width=80), place, overwrite=True)
        assert note(port) == (
            f"This is {store.place} as it was when the viewer was started: another store is there now."
        )
        assert [ask(port, f"/image/0/{index}").body for index in range(3)] == before
        assert ask(port, "/image/0/3").status == 404
        if place.endswith(".lmdb"):
            Path(place).unlink()
            assert str(note(port)).endswith("no store is there now.")
            assert ask(port, "/image/0/2").body == before[2]


@pytest.mark.slow
def test_a_server_that_stops_is_a_sentence_and_the_page_goes_on_when_it_is_back(
    tmp_path: Path, mongod: Mongod, mongod_uri: str
) -> None:
    convert(plant_photos(tmp_path / "images", 3), mongod_uri)
    separator = "&" if "?" in mongod_uri else "?"
    with viewer(f"{mongod_uri}{separator}timeoutMS=1000", "--port", "0") as running, browser(running.link) as client:
        assert client.get("/image/0/0").status_code == 200
        mongod.kill()
        answer = client.get("/image/0/1")
        assert (answer.status_code, sorted(answer.json())) == (503, ["error"])
        assert client.get("/").status_code == client.get("/api/stores").status_code == 200
        mongod.restart()
        assert client.get("/image/0/1").status_code == 200
