"""The scripts of docs/examples learn, and continue after an interruption."""

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
import torch._dynamo  # once, not in each fork: optimizers import it, which takes seconds
from PIL import Image
from safetensors.torch import load_file

from dbloader import write_store
from tests.support.children import run_program, run_script

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SAMPLES, BATCH, EPOCHS = 44, 4, 2  # 11 batches in an epoch
LIMIT_S = 100

pytestmark = pytest.mark.slow


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


# train.py, in one process and in two


def options(places: list[str], checkpoint: Path, epochs: int) -> list[object]:
    common = ["--batch-size", 8, "--input-size", 32, "--workers", 1, "--lr", 0.01]
    return [places[0], "--val", places[1], "--checkpoint", checkpoint, "--epochs", epochs, *common]


def train_alone(*arguments: object) -> str:
    status, printed = run_script(EXAMPLES / "train.py", *arguments, folder=Path.cwd())
    assert status == 0, printed
    return printed


def test_example_learns_and_resumes_on_two_processes(places: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    printed = train_alone(*options(places, checkpoint, 2))
    assert re.search(r"^epoch 0: loss \d\.\d{3}; waited for data .* of the time", printed, re.MULTILINE)
    assert "epoch 1: accuracy" in printed
    state = torch.load(checkpoint, weights_only=True)["loader"]
    assert (state["epoch"], state["position"], state["length"]) == (2, 0, SAMPLES)

    # Two processes, which share each epoch, continue the same training.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    printed, _ = run_program(*torchrun, EXAMPLES / "train.py", *options(places, checkpoint, 6), env=environment)
    assert re.findall(r"^epoch (\d): accuracy", printed, re.MULTILINE) == ["2", "3", "4", "5"]
    accuracy = re.findall(r"accuracy (.*)%", printed)[-1]
    assert float(accuracy) > 90
    assert torch.load(checkpoint, weights_only=True)["loader"]["epoch"] == 6
    assert not [path for path in tmp_path.iterdir() if path != checkpoint]


def test_example_resumes_in_the_middle_of_an_epoch(places: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    train_alone(*options(places, checkpoint, 1))
    saved = torch.load(checkpoint, weights_only=True)
    saved["loader"] |= {"epoch": 0, "position": 36}
    torch.save(saved, checkpoint)
    printed = train_alone(*options(places, checkpoint, 1))
    assert "too few batches to measure" in printed  # one batch of 8 samples was left


# The scripts of other frameworks: killed and resumed, they end with the weights of an uninterrupted training


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


# The scripts for segmentation, detection, pairs and several crops, on little data


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
