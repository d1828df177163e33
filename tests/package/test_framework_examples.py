"""The documented scripts of other frameworks, killed and resumed, end with the weights of an uninterrupted training."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from dbloader import write_store

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SAMPLES, BATCH, EPOCHS = 44, 4, 2  # 11 batches in an epoch
LIMIT_S = 100


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Make a training and a validation store of dark and bright images, and return their places."""
    folder = tmp_path_factory.mktemp("stores")
    noise = np.random.default_rng(0)

    def samples(count: int) -> Iterator[tuple[Image.Image, int]]:
        for index in range(count):
            pixels = noise.normal(60 + 130 * (index % 2), 20, (40, 48, 3)).clip(0, 255)
            yield Image.fromarray(pixels.astype(np.uint8)), index % 2

    for name, count in (("train.lmdb", SAMPLES), ("val.lmdb", 20)):
        write_store(samples(count), folder / name, classes=["dark", "bright"])
    return [str(folder / "train.lmdb"), str(folder / "val.lmdb")]


def of_torch(name: str) -> Callable[[Path], Any]:
    return lambda checkpoint: torch.load(checkpoint, weights_only=True)[name]


def of_trainer(folder: Path) -> Any:
    return load_file(max(folder.iterdir(), key=lambda each: int(each.name.split("-")[1])) / "model.safetensors")


def of_grain(checkpoint: Path) -> Any:
    with np.load(checkpoint, allow_pickle=False) as saved:
        return {name: torch.from_numpy(saved[name]) for name in ("first", "second", "last")}


# How to read the trained weights from the last checkpoint.
WEIGHTS: dict[str, Callable[[Path], Any]] = {
    "lightning_train": of_torch("state_dict"),
    "fabric_train": of_torch("model"),
    "accelerate_train": lambda folder: load_file(folder / "model.safetensors"),
    "transformers_trainer": of_trainer,
    "ignite_train": of_torch("model"),
    "torchdata_train": of_torch("model"),
    "albumentations_train": of_torch("model"),
    "grain_jax": of_grain,
}
# Each script takes about 12 s. `scripts/frameworks examples` sets the variable, and installs JAX.
SOME = ("torchdata_train",)  # tests/loading/test_frameworks.py interrupts Lightning, Accelerate and the Trainer
RUN = WEIGHTS if "DBLOADER_EVERY_EXAMPLE" in os.environ else SOME


def command(script: str, places: list[str], checkpoint: Path, *options: str) -> list[str]:
    sizes = ["--batch-size", str(BATCH), "--input-size", "32", "--epochs", str(EPOCHS), "--save-every", "4"]
    program = [sys.executable, "-u", "-W", "ignore", str(EXAMPLES / f"{script}.py")]
    return [*program, *places, *sizes, "--checkpoint", str(checkpoint), *options]


def environment() -> dict[str, str]:
    """Environment without a GPU and with one thread. With several threads, sums of floats may differ."""
    quiet = {"HF_HUB_OFFLINE": "1", "NO_ALBUMENTATIONS_UPDATE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **quiet, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


def train(line: list[str]) -> str:
    done = subprocess.run(
        line,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def train_and_kill(line: list[str]) -> None:
    """Train, and kill the process while it continues after its first checkpoint."""
    with subprocess.Popen(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert any("saved" in printed for printed in process.stdout)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("script", RUN)
def test_killed_and_resumed_training_ends_with_the_same_weights(script: str, places: list[str], tmp_path: Path) -> None:
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    printed = train(command(script, places, uninterrupted))
    assert re.findall(r"^accuracy .*$", printed, re.MULTILINE)[-1] == "accuracy 100.0%"
    train_and_kill(command(script, places, killed))
    train(command(script, places, killed, "--resume"))
    expected, weights = WEIGHTS[script](uninterrupted), WEIGHTS[script](killed)
    assert expected.keys() == weights.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
