"""Documented training scripts give the same result after they are killed and resumed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader import write_store

REASON = "torchvision is not installed: scripts/frameworks torchvision"
for _module in ("torchvision", "timm", "fastai"):
    pytest.importorskip(_module, reason=REASON)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
LIMIT_S = 120


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write a training and an evaluation store. The brightness of an image determines its label."""
    folder = tmp_path_factory.mktemp("stores")
    noise = np.random.default_rng(0)
    for name, count in (("train.lmdb", 44), ("val.lmdb", 20)):
        pixels = [noise.normal(60 + 130 * (index % 2), 20, (40, 48, 3)).clip(0, 255) for index in range(count)]
        samples = [(Image.fromarray(each.astype(np.uint8)), index % 2) for index, each in enumerate(pixels)]
        write_store(samples, folder / name, classes=["dark", "bright"])
    return [str(folder / "train.lmdb"), str(folder / "val.lmdb")]


def command(script: str, places: list[str], checkpoint: Path, *options: str) -> list[str]:
    sizes = ["--batch-size", "4", "--input-size", "32", "--epochs", "2", "--save-every", "4"]
    program = [sys.executable, "-u", "-W", "ignore", str(EXAMPLES / f"{script}.py")]
    model = ["--model", "test_resnet"] if script == "timm_train" else []
    return [*program, *places, *sizes, *model, "--checkpoint", str(checkpoint), *options]


def train(line: list[str]) -> str:
    done = subprocess.run(
        line, env=ENVIRONMENT, text=True, check=False, timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def train_killed_and_resumed(line: list[str], checkpoint: Path) -> str:
    """Kill a training after its first checkpoint, resume it, and return the output."""
    with subprocess.Popen(
        line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert any("saved" in printed for printed in process.stdout)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert torch.load(checkpoint, weights_only=True)["loader"]["epoch"] < 2
    return train([*line, "--resume"])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["timm_train", "fastai_train"])
def test_resumed_training_has_the_weights_of_an_uninterrupted_training(
    script: str, places: list[str], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    printed = train(command(script, places, whole))
    assert re.findall(r"^accuracy (.*)%$", printed, re.MULTILINE)[-1] == "100.0"
    train_killed_and_resumed(command(script, places, killed), killed)
    expected, found = (torch.load(place, weights_only=True)["model"] for place in (whole, killed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_training_with_torchvision_transforms_resumes_its_order(places: list[str], tmp_path: Path) -> None:
    """Crops and weights differ, and only the order is the same."""
    printed = train_killed_and_resumed(command("torchvision_train", places, tmp_path / "killed"), tmp_path / "killed")
    assert "accuracy" in printed
    state = torch.load(tmp_path / "killed", weights_only=True)["loader"]
    assert (state["epoch"], state["position"], state["length"]) == (2, 0, 44)
