"""An input that exceeds a limit raises a one-line error that explains how to proceed."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from tests.support.images import large_png, photo, plant, run


def pixels(folder: Path) -> list[str]:
    plant(folder, {"i/cat/0.jpg": photo(), "i/cat/1.png": large_png(60_000, 60_000)})
    return ["i"]


def csv_field(folder: Path) -> list[str]:
    (folder / "l.csv").write_text(f"path,caption\n0.jpg,{'x' * 200_000}\n")
    return ["i", "--listing", "l.csv"]


def tar_field(folder: Path) -> list[str]:
    plant(folder, {"t/0.jpg": photo(), "t/1.jpg": photo(), "t/1.txt": bytes(2**20 + 1)})
    with tarfile.open(folder / "t.tar", "w") as tar:
        tar.add(folder / "t", "t")
    return ["t.tar"]


def pickled(folder: Path) -> list[str]:
    with lmdb.open(str(folder / "old.lmdb"), subdir=False) as env, env.begin(write=True) as txn:
        txn.put(b"0", pickle.dumps((photo(), 0)))
        txn.put(b"1", pickle.dumps((photo(), [0] * 2000)))
    return ["old.lmdb"]


REACHED = [
    (pixels, 1, "more pixels than the 178,956,970 that are allowed; set the environment variable DBLOADER_MAX_PIXELS"),
    (csv_field, 2, "field larger than field limit (131072); values of any length fit into a .jsonl"),
    (
        tar_field,
        1,
        "more than 1,048,576: extract the tar and convert the folder, or hand its samples to dbloader.write",
    ),
    (pickled, 1, "more than 1,000 instructions; load it yourself, and hand its image to dbloader.write_store"),
]


@pytest.mark.parametrize(("make", "status", "message"), REACHED)
def test_error_at_a_limit_names_the_remedy(
    tmp_path: Path, make: Callable[[Path], list[str]], status: int, message: str
) -> None:
    plant(tmp_path, {"i/0.jpg": photo()})
    done = run("convert", *make(tmp_path), "o.lmdb", cwd=tmp_path)
    assert done.status == status, done
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_limit_of_pixels_is_lifted_as_its_message_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBLOADER_MAX_PIXELS", str(10**10))
    done = run("convert", *pixels(tmp_path), "o.lmdb", "--check", "structure", cwd=tmp_path)
    assert (done.status, "2 records" in done.stdout) == (0, True), done
