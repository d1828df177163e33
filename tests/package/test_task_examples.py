"""The examples for segmentation, detection, pairs and several crops learn and draw a picture, on little data."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401 # once, not in each fork: optimizers import it, which takes seconds
from PIL import Image

from tests.support.children import run_script

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], list[float]]:
    """Run an example with this many images and epochs. Return the numbers in the last line that it prints."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def run_example(name: str, images: int, epochs: int) -> list[float]:
        arguments = ["data", "--picture", "batch.png", "--images", images, "--epochs", epochs]
        status, printed = run_script(EXAMPLES / f"{name}.py", *arguments, folder=tmp_path)
        assert status == 0, printed
        with Image.open(tmp_path / "batch.png") as drawn:
            assert len(drawn.getcolors(1 << 24) or ()) > 1000  # the picture is not empty
        return [float(number) for number in re.findall(r"-?\d+\.\d+", printed.splitlines()[-1])]

    return run_example


def test_segmentation_example_learns(run: Callable[[str, int, int], list[float]]) -> None:
    (iou,) = run("segmentation", 120, 6)
    assert iou > 0.35  # a network that finds nothing reaches 0.22


def test_detection_example_learns(run: Callable[[str, int, int], list[float]]) -> None:
    (precision,) = run("detection", 120, 8)
    assert precision > 0.2  # an untrained network reaches 0.00


def test_super_resolution_example_beats_resizing(run: Callable[[str, int, int], list[float]]) -> None:
    _, _, gained = run("super_resolution", 64, 14)
    assert gained > 0.5  # an untrained network gains nothing over resizing


def test_multicrop_example_learns(run: Callable[[str, int, int], list[float]]) -> None:
    accuracy, untrained, _ = run("multicrop", 150, 5)
    assert accuracy > max(0.75, untrained + 0.2)
