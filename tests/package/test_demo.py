"""The steps of the demo work on drawn pictures, which replace the photographs that scripts/demo installs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.children import run_program
from tests.support.images import command

HERE = Path(__file__).resolve().parents[2]
PARTS = HERE / "scripts" / "parts"


@pytest.mark.slow
def test_demo_converts_a_folder_and_trains(tmp_path: Path) -> None:
    data = tmp_path / "skimage" / "data"
    data.mkdir(parents=True)
    (tmp_path / "skimage" / "__init__.py").write_text("raise AssertionError('its files are read, it is not imported')")
    rng = np.random.default_rng(0)
    for file in re.findall(r'"(\S+\.(?:png|jpg))"', (PARTS / "demo_images.py").read_text(encoding="utf-8")):
        color = rng.integers(0, 256, (1, 1, 3))  # a network recognizes the class by this color
        pixels = np.clip(color + rng.integers(-40, 40, (15, 30, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).resize((600, 300)).save(data / file)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(tmp_path)])}

    def run(*line: object, status: int = 0) -> str:
        return run_program(*line, status=status, cwd=tmp_path, env=environment)[0]

    shown = run(sys.executable, PARTS / "demo_images.py", "photographs")
    assert shown == "1,600 images; 6 of the files are damaged, and 1 has bytes after its end\n"
    train = run(*command("convert", "photographs/train", "train.lmdb"), status=1)
    test = run(*command("convert", "photographs/test", "test.lmdb"), status=1)
    lines = [line.split(":")[0].strip() for line in (train + test).splitlines() if re.match("  (re|rej)", line)]
    assert "1,298 records" in train
    assert "298 records" in test
    assert lines == ["repaired  2", "rejected  2 of 1,300", "rejected  2 of 300"]
    shown = run(
        sys.executable, PARTS / "demo_train.py", "train.lmdb", "test.lmdb", "--epochs", "1", "--picture", "batch.png"
    )
    accuracy = re.search(r"accuracy on 298 images, .*: ([0-9.]+)%", shown)
    assert accuracy is not None
    assert float(accuracy[1]) > 50  # random guesses reach 10 %
    with Image.open(tmp_path / "batch.png") as picture:
        assert picture.width > 8 * 64
