"""``dbloader view`` as a process, and ``dbloader.view`` in this one."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from PIL import Image

import dbloader
from dbloader import convert, open_store, write_store
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import NotAStoreError, OptionError, StoreNotFoundError
from dbloader.ext.viewing.guard import STATIC
from dbloader.ext.viewing.server import View
from dbloader.ext.viewing.training_process import load_transform
from tests.package.test_without_torch import BLOCKER
from tests.support.children import run_program
from tests.support.images import WAIT_S, photo, plant, plant_photos, run, wait_until
from tests.support.mongo import Mongod
from tests.support.viewer import ask, browser, viewer

LINK = re.compile(r"Open http://127\.0\.0\.1:([0-9]+)/\?token=[0-9A-Za-z_-]{43}")
NO_DISPLAY = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "SSH_CONNECTION": ""}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewed")
    convert(plant_photos(folder / "images", 200), folder / "a.lmdb")
    return folder / "a.lmdb"


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


# Beginning and end


def test_printed_link_opens_the_page_and_ctrl_c_ends_the_viewer(store: Path) -> None:
    with viewer(store, "--port", "0", **NO_DISPLAY) as running:
        found = LINK.fullmatch(running.lines[0])
        assert found
        with browser(running.link) as client:
            assert client.get("/").text.startswith("<!doctype html>")
            assert client.get("/image/0/3").headers["content-type"] == "image/jpeg"
            assert running.stop() == (130, "Interrupted\n")
        assert not is_listening(int(found[1]))


@pytest.mark.slow
def test_server_ends_when_its_command_is_killed(store: Path) -> None:
    with viewer(store, "--port", "0", **NO_DISPLAY) as running:
        assert is_listening(running.port)
        assert running.stop(signal.SIGKILL) == (-signal.SIGKILL, "")
        until = time.monotonic() + WAIT_S
        while is_listening(running.port):
            assert time.monotonic() < until


@pytest.mark.slow
def test_viewer_ends_with_one_line_if_a_file_crashes_its_process(store: Path, tmp_path: Path) -> None:
    place = tmp_path / "cut.lmdb"
    place.write_bytes(store.read_bytes())
    with viewer(place, "--port", "0", **NO_DISPLAY) as running, browser(running.link) as client:
        os.truncate(place, 4096 * 4)
        for index in range(200):
            try:
                client.get(f"/image/0/{index}")
            except httpx.TransportError:
                break
        rest, _ = running.process.communicate(timeout=WAIT_S)
        what = f"{place} is damaged: the process that read it crashed with SIGBUS; copy it again from the original"
        assert (running.process.returncode, rest) == (2, f"Error: {what}\n")


# Places


@pytest.mark.slow
def test_unopenable_place_prints_one_line_without_the_password(store: Path, tmp_path: Path) -> None:
    away = "mongodb://user:s3cret@127.0.0.1:1/images.train?serverSelectionTimeoutMS=10"
    for places, error in (
        ((store, tmp_path / "nothing"), rf"{tmp_path}/nothing does not exist; .*"),
        ((away,), r"no server answers at mongodb://127\.0\.0\.1:1/images\.train .*"),
    ):
        outcome = run("view", *map(str, places), "--port", "0")
        assert (outcome.status, outcome.stdout) == (2, "")
        assert re.fullmatch(f"Error: {error}\n", outcome.stderr), outcome.stderr
        assert "s3cret" not in outcome.stderr


@pytest.mark.slow
def test_password_is_in_no_line_page_or_error(tmp_path: Path, mongod_with_users: Mongod) -> None:
    place, password = mongod_with_users.place("viewed"), "s3cret/@:%"
    convert(plant_photos(tmp_path / "images", 3), place)
    try:
        with viewer(place, "--port", "0", **NO_DISPLAY) as running, browser(running.link) as client:
            paths = ("/", "/api/stores", "/api/0/select?q=x", "/api/0/summary", "/api/0/record/0", "/api/0/note")
            answers = [client.get(path) for path in (*paths, "/image/0/9", "/api/0/rows?start=x", f"/{password}")]
            assert [answer.status_code for answer in answers] == [*[200] * len(paths), 400, 400, 404]
            status, rest = running.stop()
        texts = [*running.lines, rest, *(answer.text for answer in answers), *map(str, (a.headers for a in answers))]
        assert status == 130
        assert not [text for text in texts for part in (password, quote(password, safe=""), "s3cret") if part in text]
    finally:
        mongod_with_users.drop("viewed")


# Ports and hosts


def test_next_free_port_replaces_only_the_default_port(store: Path) -> None:
    with dbloader.view(store) as first, dbloader.view(store) as second:
        assert 7878 <= first.port < second.port
        with pytest.raises(OptionError, match=f"^port {first.port} of 127.0.0.1 is taken: choose another port"):
            dbloader.view(store, port=first.port)
        with browser(first.url) as client:  # each viewer has a different cookie
            cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in client.cookies.jar)
            assert ask(first.port, "/", f"Cookie: {cookies}", host=f"127.0.0.1:{first.port}").status == 200
            assert ask(second.port, "/", f"Cookie: {cookies}", host=f"127.0.0.1:{second.port}").status == 403


def test_viewer_listens_only_on_this_machine(store: Path) -> None:
    with dbloader.view(store, port=0) as running:
        listening = f":{running.port:04X} 00000000:0000 "
        (line,) = [line for line in Path("/proc/net/tcp").read_text().splitlines() if listening in line]
        assert line.split()[1] == f"0100007F:{running.port:04X}"
        assert not running.is_public


def test_public_viewer_answers_to_its_name_and_every_address(store: Path) -> None:
    with dbloader.view(store, host="0.0.0.0", port=0) as running:
        assert running.is_public
        assert running.url.startswith(f"http://{socket.gethostname()}:{running.port}/")
        for host in (socket.gethostname(), "10.1.2.3", "0.0.0.0", "localhost"):
            assert b"not known here" in ask(running.port, "/", host=f"{host}:{running.port}").body
        assert b"only to its own name" in ask(running.port, "/", host="evil.example").body


def test_ipv6_address_has_brackets_in_the_link(store: Path) -> None:
    with dbloader.view(store, host="::1", port=0) as running, browser(running.url) as client:
        assert running.url.startswith(f"http://[::1]:{running.port}/")
        assert client.get("/api/stores").status_code == 200


def test_viewer_of_a_dataset_begins_with_its_query(store: Path) -> None:
    with dbloader.LMDBDataset(store, where="class:cat index<10") as dataset:
        first = dataset[0]
        with dbloader.view(dataset, dataset.store, port=0) as running, browser(running.url) as client:
            assert running.url.endswith("&q=class%3Acat%20index%3C10")
            assert client.get(running.url).headers["location"] == "/?q=class%3Acat%20index%3C10"
            assert [each["place"] for each in client.get("/api/stores").json()] == [str(store)] * 2
        assert dataset[0] == first  # the viewer has not closed the user's store
    with open_store(store) as opened, dbloader.view(opened, port=0) as running:
        assert "&q=" not in running.url


@pytest.mark.slow
def test_public_host_prints_a_warning(store: Path) -> None:
    with viewer(store, "--port", "0", "--host", "0.0.0.0", **NO_DISPLAY) as running:
        warning = "Warning: other machines can reach this address, and the connection is not encrypted: ssh is safer"
        assert running.lines[1:-1] == [warning]


@pytest.mark.parametrize(
    ("host", "error"),
    [
        ("nowhere.invalid", r"cannot listen on host 'nowhere\.invalid'.*not known.*an address of this machine"),
        ("192.0.2.1", r"cannot listen on host '192\.0\.2\.1'.*Cannot assign.*an address of this machine"),
        ("", "^host must be an address of this machine.*''$"),
        ("127.0.0.1\0", r"^host must be an address of this machine.*'127\.0\.0\.1\\x00'$"),
    ],
)
def test_host_that_is_no_address_of_this_machine_is_refused(store: Path, host: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        dbloader.view(store, host=host)


def test_ipv6_address_is_an_error_on_a_machine_without_ipv6(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class IPv4Socket(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **options: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *rest, **options)

    monkeypatch.setattr("socket.socket", IPv4Socket)
    with pytest.raises(OptionError, match=r"cannot listen on host '::1'.*Address family not supported"):
        dbloader.view(store, host="::1")


@pytest.mark.parametrize("begun", ["nothing", "half a request", "half a request after a whole one"])
def test_connection_without_a_whole_request_is_closed(store: Path, begun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.ext.viewing.guard._REQUEST_S", 0.5)
    half = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    running = dbloader.view(store, port=0)
    with running, socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S) as client:
        if begun == "half a request after a whole one":
            client.sendall(half + b"\r\n")
            assert client.recv(2**16).startswith(b"HTTP/1.1 403")
        if begun != "nothing":
            client.sendall(half)
        while client.recv(2**16):  # reads until the server closes the connection
            pass


def test_slow_answer_is_not_cut_off(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.ext.viewing.guard._REQUEST_S", 0.5)

    def transform(image: Image.Image) -> Image.Image:
        time.sleep(1)
        return image

    with dbloader.view(store, port=0, transform=transform) as running, browser(running.url) as client:
        assert client.get("/seen/0/1?position=0").status_code == 200


def test_connections_beyond_the_limit_are_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.ext.viewing.server._MOST_CONNECTIONS", 2)
    with dbloader.view(store, port=0) as running:
        with socket.create_connection(("127.0.0.1", running.port)):
            assert ask(running.port, "/").status == 503
        with browser(running.url) as client:
            assert client.get("/").status_code == 200


# Opening the browser of the user who started the viewer


@pytest.mark.slow
def test_ssh_session_prints_the_tunnel_and_opens_no_browser(store: Path, tmp_path: Path) -> None:
    variables = {"SSH_CONNECTION": "198.51.100.1 4711 192.0.2.7 2222", "DISPLAY": ":0", "USER": "ann"}
    with viewer(store, "--port", "0", BROWSER=f"touch {tmp_path}/opened %s", **variables) as running:
        port = running.port
        assert running.lines[1] == (
            "If your browser is on another machine, run this there first: "
            f"ssh -N -L {port}:127.0.0.1:{port} -p 2222 ann@192.0.2.7"
        )
    assert not (tmp_path / "opened").exists()


@pytest.mark.slow
def test_link_opens_on_a_display_unless_no_open_is_given(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/opened\n')
    script.chmod(0o755)
    variables = {"SSH_CONNECTION": "", "DISPLAY": ":0", "BROWSER": f"{script} %s"}
    with viewer(store, "--port", "0", "--no-open", **variables) as running:
        assert len(running.lines) == 2
    assert not (tmp_path / "opened").exists()
    with viewer(store, "--port", "0", **variables) as running:
        assert len(running.lines) == 2
        assert wait_until(running.process, (tmp_path / "opened").exists)
        assert (tmp_path / "opened").read_text() == f"{running.link}\n"


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_error_about_a_missing_extra_has_the_install_command(store: Path, tmp_path: Path, missing: str) -> None:
    plant(tmp_path / "site", {"sitecustomize.py": BLOCKER.replace('"torchvision"', f'"{missing}"').encode()})
    paths = f"{tmp_path}/site:{Path(dbloader.__file__).parents[1]}"
    outcome = run("view", store, env={**os.environ, "PYTHONPATH": paths})
    error = f"Error: the viewer needs {missing}: pip install 'dbloader[view]'\n"
    assert outcome == (2, "", error)


# In a notebook


def test_view_returns_at_once_and_close_ends_everything(store: Path) -> None:
    running = dbloader.view(store, port=0)
    with browser(running.url) as client:
        assert client.get("/api/stores").json()[0]["records"] == 200
        assert client.get("/thumb/0/1?px=160").status_code == 200
        running.close()
        with pytest.raises(httpx.ConnectError):
            client.get("/")
    running.close()  # calling close() twice does no harm


def test_notebook_shows_an_unused_link(store: Path) -> None:
    with dbloader.view(store, store, port=0) as running:
        used = running.url
        assert running._repr_html_().startswith(f'<a href="{used}" target="_blank" rel="noopener">')
        for _ in range(2):
            with browser(running.url) as client:
                assert len(client.get("/api/stores").json()) == 2
        assert running.url != used


def test_view_with_invalid_arguments_raises_and_leaves_nothing_behind(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="nothing does not exist"):
        dbloader.view(tmp_path / "nothing")
    plant(tmp_path, {"text": b"text"})
    with pytest.raises(NotAStoreError, match="text"):
        dbloader.view(store, tmp_path / "text")
    with pytest.raises(OptionError, match="port must be from 0 to 65535, got 65536"):
        dbloader.view(store, port=65536)
    with pytest.raises(TypeError, match="port must be an int or None, got '1'"):
        dbloader.view(store, port="1")  # type: ignore[arg-type]


@pytest.mark.slow
def test_program_ends_without_waiting_for_its_viewer(store: Path) -> None:
    program = "import sys, dbloader; v = dbloader.view(sys.argv[1], port=0); print(v.url)"
    stdout, stderr = run_program(sys.executable, "-c", program, store)
    assert (stdout[:17], stderr) == ("http://127.0.0.1:", "")


# --transform


MODULE = """
from torch import nn
from dbloader.decoding import RandomResizedCrop
class Turn(nn.Module):  # as torchvision's
    def __init__(self, degrees=90): super().__init__()
    def forward(self, image): return image.rotate(90)
ready = Turn()
decoder = RandomResizedCrop(8)
size = 8
def plain(image): return image.rotate(90)
def factory(degrees=90): return Turn(degrees)
def nothing(): return None
def failing(image): raise ValueError("the image is too blue")
def broken(): raise RuntimeError("no such file: classes.txt")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module in the current directory, which only this test can import."""
    name = f"transforms_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return name


def test_transform_may_be_an_object_a_function_or_a_functions_result(module: str) -> None:
    for name in ("ready", "factory", "Turn"):
        assert type(load_transform(f"{module}:{name}")).__name__ == "Turn"
    assert isinstance(load_transform(f"{module}:decoder"), RandomResizedCrop)
    assert load_transform(f"{module}:plain").__name__ == "plain"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("train", "a transform must be MODULE:NAME, such as train:make_transform, got 'train'"),
        ("no_such_module:x", "x cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}:absent", "cannot be loaded: AttributeError: .*absent"),
        ("{}:broken", "cannot be loaded: RuntimeError: no such file: classes.txt"),
        ("{}:size", "size must be a callable, or a function that returns one, got 8"),
        ("{}:nothing", "nothing must be a callable, or a function that returns one, got None"),
    ],
)
def test_transform_that_cannot_be_loaded_is_an_error(module: str, name: str, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        load_transform(name.format(module))


def test_files_of_the_page_are_read_as_utf8_in_every_locale() -> None:
    code = "from dbloader.ext.viewing.guard import STATIC; print(ascii([*STATIC.values()]))"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    printed, _ = run_program(sys.executable, "-c", code, env={**os.environ, **ascii_only})
    assert printed.strip() == ascii([*STATIC.values()])


def test_mixture_is_shown_with_all_of_its_stores(tmp_path: Path) -> None:
    places = [tmp_path / "a.lmdb", tmp_path / "b.lmdb", tmp_path / "c.lmdb"]
    for number, place in enumerate(places):
        convert(plant_photos(tmp_path / f"images{number}", 3), place)
    mixture = dbloader.mix(dict.fromkeys(places, 1))
    with dbloader.view(mixture, port=0) as running, browser(running.url) as client:
        assert [store["place"] for store in client.get("/api/stores").json()] == [*map(str, places)]
        batch = client.get("/api/0/training", params={"batch_size": 6, "size": 16}).json()
        assert "samples" in batch, batch
        assert sorted(sample["source"] for sample in batch["samples"]) == sorted([*map(str, places)] * 2)
        for sample in batch["samples"]:
            at: Any = {"seed": 0, "epoch": 0, "position": sample["position"], "size": 16}
            seen = client.get(f"/seen/{sample['store']}/{sample['seen']}", params=at)
            assert seen.headers["content-type"] == "image/png"
            assert client.get(f"/api/{sample['store']}/record/{sample['index']}").json()["name"] == sample["name"]
    assert len([*mixture]) == 9  # its stores are still usable
    mixture.close()


def test_viewer_of_stores_with_other_classes_warns(tmp_path: Path) -> None:
    for name, classes in (("a", ["cat", "dog"]), ("b", ["dog"]), ("c", ["dog"])):
        write_store([{"image": photo(0), "label": 0}], tmp_path / f"{name}.lmdb", classes=classes)
    for other, warned in (("a", 1), ("c", 0)):
        told: list[str] = []
        with View([tmp_path / "b.lmdb", tmp_path / f"{other}.lmdb"], port=0, tell=told.append):
            assert sum("the same label may mean different classes" in line for line in told) == warned
