"""The training scripts of the documentation that need torchvision, timm or fastai: killed, resumed, and compared."""

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
    """Two stores of images that are as bright as their label says: to train on, and to evaluate on."""
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


@pytest.mark.slow
@pytest.mark.parametrize("script", ["timm_train", "fastai_train", "torchvision_train"])
def test_a_training_goes_on_after_it_was_killed(script: str, places: list[str], tmp_path: Path) -> None:
    """With the weights of one that was not; but torchvision's crops are drawn by the workers, and are others."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    printed = train(command(script, places, whole))
    accuracy = float(re.findall(r"^accuracy (.*)%$", printed, re.MULTILINE)[-1])
    line = command(script, places, killed)
    with subprocess.Popen(
        line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert any("saved" in line for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert torch.load(killed, weights_only=True)["loader"]["epoch"] < 2
    printed = train([*line, "--resume"])
    expected, found = (torch.load(place, weights_only=True) for place in (whole, killed))
    assert found["loader"] == expected["loader"]
    if script == "torchvision_train":
        assert "accuracy" in printed
        return
    assert accuracy == 100
    assert all(torch.equal(found["model"][name], value) for name, value in expected["model"].items())
