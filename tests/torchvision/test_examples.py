"""Documented training scripts that need torchvision give the same result after they are killed and resumed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.package.test_examples import command, places, train, train_and_kill  # noqa: F401 - a fixture

for _module in ("torchvision", "timm", "fastai"):
    pytest.importorskip(_module, reason="torchvision is not installed: scripts/frameworks torchvision")

pytestmark = pytest.mark.slow


def train_killed_and_resumed(line: list[str], checkpoint: Path) -> str:
    """Kill a training after its first checkpoint, resume it, and return the output."""
    train_and_kill(line)
    assert torch.load(checkpoint, weights_only=True)["loader"]["epoch"] < 2
    return train([*line, "--resume"])


@pytest.mark.parametrize(("script", "options"), [("timm_train", ["--model", "test_resnet"]), ("fastai_train", [])])
def test_resumed_training_has_the_weights_of_an_uninterrupted_training(
    script: str,
    options: list[str],
    places: list[str],  # noqa: F811
    tmp_path: Path,
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    printed = train(command(script, places, whole, *options))
    assert re.findall(r"^accuracy (.*)%$", printed, re.MULTILINE)[-1] == "100.0"
    train_killed_and_resumed(command(script, places, killed, *options), killed)
    expected, found = (torch.load(place, weights_only=True)["model"] for place in (whole, killed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_training_with_torchvision_transforms_resumes_its_order(places: list[str], tmp_path: Path) -> None:  # noqa: F811
    """Crops and weights differ, and only the order is the same."""
    printed = train_killed_and_resumed(command("torchvision_train", places, tmp_path / "killed"), tmp_path / "killed")
    assert "accuracy" in printed
    state = torch.load(tmp_path / "killed", weights_only=True)["loader"]
    assert (state["epoch"], state["position"], state["length"]) == (2, 0, 44)
