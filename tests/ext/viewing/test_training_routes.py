"""The routes of the training view, with --transform and without torch."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dbloader import convert, copy_store
from dbloader.ext.viewing import training_process
from tests.package.test_without_torch import BLOCKER
from tests.support.images import plant, plant_photos, run
from tests.support.viewer import browser, viewer
from tests.support.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.slow

MODULE = b"""
import torch, numpy as np
def gray():
    def transform(image):
        if image.width > 40: raise ValueError("too wide")
        return torch.from_numpy(np.array(image.convert("L")))[None] / 255 - 0.5
    return transform
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    plant_photos(tmp_path / "images", 6)
    plant_photos(tmp_path / "images" / "wide", 2, width=48)
    convert(tmp_path / "images", tmp_path / "a.lmdb")
    return str(tmp_path / "a.lmdb")


def test_options_affect_the_batch_and_invalid_options_get_a_sentence(place: str) -> None:
    with viewer(place, "--port", 0) as running, browser(running.link) as client:
        options: Any = {"seed": -5, "epoch": 2, "batch_size": 3, "world_size": 2, "rank": 1, "step": 1, "size": "16x24"}
        batch = client.get("/api/0/training", params={**options, "drop_last": 0}).json()
        assert (batch["seed"], batch["epoch"], batch["step"], batch["steps"]) == ("-5", 2, 1, 2)
        assert len(batch["indices"]) == len(batch["samples"]) == 1
        at: Any = {"seed": -5, "epoch": 2, "position": batch["samples"][0]["position"], "size": "16x24"}
        seen = client.get(f"/seen/0/{batch['indices'][0]}", params=at)
        assert (seen.headers["content-type"], seen.headers["x-values"]) == ("image/png", "")
        assert Image.open(io.BytesIO(seen.content)).size == (24, 16)
        for path, error in (
            ("/api/0/training?step=x", "step must be an integer"),
            ("/api/0/training?drop_last=2", "drop_last must be from 0 to 1"),
            ("/api/0/training?rank=1", "rank must be 0 to 0"),
            ("/seen/0/0", "position must be an integer"),
        ):
            answer = client.get(path)
            assert answer.status_code == 400
            assert error in answer.json()["error"]
        assert client.get("/seen/0/8?position=0").status_code == 400


def test_transform_of_the_current_folder_is_applied(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, {"my_transforms.py": MODULE})
    monkeypatch.chdir(tmp_path)
    with viewer(place, "--port", 0, "--transform", "my_transforms:gray") as running, browser(running.link) as client:
        batch = client.get("/api/0/training?batch_size=8").json()
        assert "transform" in batch["transform"]
        assert running.process.pid not in with_torch(running.process.pid)
        assert not batch["repeatable"]
        for sample in batch["samples"]:
            seen = client.get(f"/seen/0/{sample['index']}?position={sample['position']}")
            if sample["name"].startswith("wide"):
                assert (seen.status_code, seen.json()) == (400, {"error": "the transform failed: ValueError: too wide"})
            else:
                pixels = np.asarray(Image.open(io.BytesIO(seen.content)))
                assert (pixels.ndim, pixels.min(), pixels.max()) == (2, 0, 255)
                assert seen.headers["x-values"].endswith(" shown as black to white")
    plant(tmp_path, {"ends.py": b"raise SystemExit(0)"})
    done = run("view", place, "--transform", "ends:transform")
    assert done.status == 2
    assert "ends:transform cannot be loaded: its import ended the process" in done.stderr
    done = run("view", place, "--transform", "os:sep")
    assert done.status == 2
    assert done.stderr == "Error: the transform os:sep must be a callable, or a function that returns one, got '/'\n"


def test_without_torch_only_the_training_view_says_what_to_install(place: str, tmp_path: Path) -> None:
    plant(tmp_path / "site", {"sitecustomize.py": BLOCKER.encode()})
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    with viewer(place, "--port", 0, PYTHONPATH=path) as running, browser(running.link) as client:
        assert client.get("/api/stores").json()[0]["records"] == 8
        for path in ("/api/0/training", "/seen/0/0?position=0"):
            error = "this page needs torch, which is not installed here: pip install torch"
            assert client.get(path).json() == {"error": error}


def with_torch(session: int) -> list[int]:
    """Return the processes of a session that have loaded torch."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.getsid(int(path.name)) == session and "libtorch" in (path / "maps").read_text():
                found.append(int(path.name))
    return found


def test_torch_process_is_restarted_and_ends_with_the_viewer(place: str) -> None:
    with viewer(place, "--no-open") as running, browser(running.link) as client:
        session = running.process.pid
        batch = client.get("/api/0/training?batch_size=3").json()
        (process,) = with_torch(session)
        os.kill(process, signal.SIGKILL)  # as if the process had ended after idling
        assert client.get("/api/0/training?batch_size=3").json() == batch
        (process,) = with_torch(session)
        copy_store(place, f"{place}.copy", where="index:0")
        Path(f"{place}.copy").replace(place)
        os.kill(process, signal.SIGKILL)
        answer = client.get("/api/0/training?batch_size=3")
        assert (answer.status_code, answer.json()["error"][:13]) == (400, "another store")
        running.stop(signal.SIGKILL)
        wait_for(lambda: not with_torch(session), "the process that has loaded torch ends")


def test_idle_training_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_process, "_IDLE_S", 0)
    ours, other = multiprocessing.Pipe()
    with ThreadPoolExecutor(1) as executor, other, ours:  # the end of the pipe would end the thread too
        executor.submit(training_process._answer, other, []).result(WAIT_S)
        assert not ours.poll(), "it must not send an answer that nobody has asked for"
