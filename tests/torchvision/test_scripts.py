"""The training scripts of timm's repository run on stores.

The package timm does not contain these scripts. DBLOADER_TIMM_SCRIPTS is their folder; without it, the test is skipped.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dbloader import convert
from tests.support.docs import block_with

for _module in ("torchvision", "timm"):
    pytest.importorskip(_module, reason="torchvision is not installed: scripts/frameworks torchvision")

TIMM = os.environ.get("DBLOADER_TIMM_SCRIPTS")
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
SCRIPTS = "scripts/frameworks says how to name the folder of these scripts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with train and validation folders and their stores.

    Brightness determines the class of an image.
    """
    folder = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(0)
    for split, count in (("train", 16), ("validation", 8)):
        for name, brightness in zip("abcde", range(30, 256, 50), strict=False):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = noise.normal(brightness, 20, (40 + index % 5, 48, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index:02}.jpg")
        convert(folder / split, folder / f"{split}.lmdb")
    return folder


def run(*arguments: object, cwd: Path) -> str:
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, text=True, check=False, timeout=300, **pipes)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not TIMM, reason=SCRIPTS)
@pytest.mark.parametrize("prefetcher", [[], ["--no-prefetcher"]])
def test_timm_scripts_give_equal_results_on_store_and_folder(
    folder: Path, tmp_path: Path, prefetcher: list[str]
) -> None:
    options = ["--model", "test_resnet", "--num-classes", 5, "--input-size", 3, 32, 32, "-b", 8, "-j", 2]
    options += ["--device", "cpu", *prefetcher]
    training = ["--epochs", 2, "--warmup-epochs", 0, "--lr", 0.05, "--reprob", 0.25, "--output", tmp_path]
    (tmp_path / "timm_on_stores.py").write_text(block_with("integrations", "runpy"))
    stores = [tmp_path / "timm_on_stores.py"], f"{folder}/{{split}}.lmdb"
    summaries, results = [], []
    for name, (module, data) in {"store": stores, "folder": ([], str(folder))}.items():
        run(*module, f"{TIMM}/train.py", "--data-dir", data, *options, *training, "--experiment", name, cwd=tmp_path)
        with (tmp_path / name / "summary.csv").open() as file:
            summaries.append([{**row, "epoch_time": None} for row in csv.DictReader(file)])
        checkpoint = ["--checkpoint", tmp_path / name / "last.pth.tar"]
        printed = run(*module, f"{TIMM}/validate.py", "--data-dir", data, *options, *checkpoint, cwd=tmp_path)
        results.append(json.loads(printed.partition("--result\n")[2]))
    assert len(summaries[0]) == 2
    assert summaries[0] == summaries[1]
    assert results[0]["top1"] == results[1]["top1"] > 30  # random guesses reach 20
