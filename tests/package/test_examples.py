"""The documented training script learns in one process and in two, and resumes after an interruption."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader import write_store
from tests.support.children import run_program, run_script

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train.py"
SAMPLES = 48


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of images whose brightness depends on their label."""
    place = tmp_path_factory.mktemp("store") / "train.lmdb"
    noise = np.random.default_rng(0)

    def image(label: int) -> Image.Image:
        pixels = noise.normal(60 if label == 0 else 190, 20, (40, 48, 3)).clip(0, 255)
        return Image.fromarray(pixels.astype(np.uint8))

    write_store(((image(index % 2), index % 2) for index in range(SAMPLES)), place, classes=["dark", "bright"])
    return place


def run(*arguments: object) -> str:
    status, printed = run_script(SCRIPT, *arguments, folder=Path.cwd())
    assert status == 0, printed
    return printed


def run_two(*arguments: object) -> str:
    """Run the script in two processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return run_program(*torchrun, SCRIPT, *arguments, env=environment)[0]


def options(place: Path, checkpoint: Path, epochs: int) -> list[object]:
    common = ["--batch-size", 8, "--input-size", 32, "--workers", 1, "--lr", 0.01]
    return [place, "--val", place, "--checkpoint", checkpoint, "--epochs", epochs, *common]


@pytest.mark.slow
def test_example_learns_and_resumes_on_two_processes(place: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    printed = run(*options(place, checkpoint, 2))
    assert re.search(r"^epoch 0: loss \d\.\d{3}; waited for data .* of the time", printed, re.MULTILINE)
    assert "epoch 1: accuracy" in printed
    state = torch.load(checkpoint, weights_only=True)["loader"]
    assert (state["epoch"], state["position"], state["length"]) == (2, 0, SAMPLES)

    # Two processes, which share each epoch, continue the same training.
    printed = run_two(*options(place, checkpoint, 6))
    assert re.findall(r"^epoch (\d): accuracy", printed, re.MULTILINE) == ["2", "3", "4", "5"]
    accuracy = re.findall(r"accuracy (.*)%", printed)[-1]
    assert float(accuracy) > 90
    assert torch.load(checkpoint, weights_only=True)["loader"]["epoch"] == 6
    assert not [path for path in tmp_path.iterdir() if path != checkpoint]


@pytest.mark.slow
def test_example_resumes_in_the_middle_of_an_epoch(place: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    run(*options(place, checkpoint, 1))
    saved = torch.load(checkpoint, weights_only=True)
    saved["loader"] |= {"epoch": 0, "position": 40}
    torch.save(saved, checkpoint)
    printed = run(*options(place, checkpoint, 1))
    assert "too few batches to measure" in printed  # one batch of 8 samples was left
