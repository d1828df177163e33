"""An input that exceeds a limit raises a one-line error that explains how to proceed."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.images import photo, plant, run


def csv_field(folder: Path) -> list[str]:
    (folder / "l.csv").write_text(f"path,caption\n0.jpg,{'x' * 200_000}\n")
    return ["i", "--listing", "l.csv"]


def tar_field(folder: Path) -> list[str]:
    plant(folder, {"t/0.jpg": photo(), "t/1.jpg": photo(), "t/1.txt": bytes(2**20 + 1)})
    with tarfile.open(folder / "t.tar", "w") as tar:
        tar.add(folder / "t", "t")
    return ["t.tar"]


TAR = "more than 1,048,576: extract the tar and convert the folder, or hand the samples to dbloader.write"
CSV = "field larger than field limit (131072); values of any length fit into a .jsonl"


@pytest.mark.parametrize(("make", "status", "message"), [(csv_field, 2, CSV), (tar_field, 1, TAR)])
def test_error_at_a_limit_names_the_remedy(
    tmp_path: Path, make: Callable[[Path], list[str]], status: int, message: str
) -> None:
    plant(tmp_path, {"i/0.jpg": photo()})
    done = run("convert", *make(tmp_path), "o.lmdb", cwd=tmp_path)
    assert done.status == status, done
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
