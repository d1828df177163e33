"""scripts/setup finds out whether an index with PyTorch's builds without CUDA answers. Servers here stand in for it."""

from __future__ import annotations

import functools
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.children import run_program

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "parts" / "torch_index"

pytestmark = pytest.mark.skipif(
    any(Path("/dev").glob("nvidia*")) or Path("/dev/dxg").exists(), reason="there is an NVIDIA device"
)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("build", "is_chosen"), [("+cpu", True), ("", False)])
def test_index_is_chosen_only_if_it_has_builds_without_cuda(
    index: str, tmp_path: Path, build: str, is_chosen: bool
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "index.html").write_text(
        f'<!DOCTYPE html><a href="torch-9.0{build}-py3-none-any.whl">torch-9.0{build}-py3-none-any.whl</a>'
    )
    printed, said = run_program(SCRIPT, sys.executable, index)
    assert printed == (f"{index}\n" if is_chosen else "")
    assert ("PyTorch without CUDA is installed" if is_chosen else "CUDA libraries of several GB") in said
    assert "TORCH_INDEX=URL scripts/setup" in said


@pytest.mark.parametrize("is_silent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_index_that_does_not_answer_is_not_chosen(is_silent: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if is_silent:
            taken.listen()  # accepts connections and never answers; without it, connections are refused
        index = f"http://127.0.0.1:{taken.getsockname()[1]}"
        printed, said = run_program(SCRIPT, sys.executable, index)
    assert printed == ""
    assert f"without CUDA is not available at {index}, so pip's usual index is used" in said
