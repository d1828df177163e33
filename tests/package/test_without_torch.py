"""Without torch, most of dbloader works. The rest raises a one-line error that names what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dbloader
from tests.support.children import run_program
from tests.support.images import command, plant, plant_kinds, plant_photos

# Each Python process imports this sitecustomize module, which makes `import torch` raise Python's own error.
BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""
NEEDED = r"needs torch, which is not installed here: pip install torch"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    plant(tmp_path / "site", {"sitecustomize.py": BLOCKER.encode()})
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def run(line: list[Any], environment: dict[str, str], status: int = 0) -> str:
    stdout, stderr = run_program(*line, status=status, env=environment)
    assert ("Traceback" in stderr) == (status == 1)
    return stdout + stderr


def python(script: str, *arguments: object, environment: dict[str, str], status: int = 0) -> str:
    return run([sys.executable, "-c", script, *map(str, arguments)], environment, status)


def test_environment_has_no_importable_torch(environment: dict[str, str]) -> None:
    assert "ModuleNotFoundError: No module named 'torch'" in python("import torch", environment=environment, status=1)


@pytest.mark.slow
def test_command_line_runs_without_torch(tmp_path: Path, environment: dict[str, str], mongo_uri: str) -> None:
    root = plant_photos(tmp_path / "images", 6)
    plant_kinds(root, "png", "no end marker")
    place, copy = str(tmp_path / "a.lmdb"), str(tmp_path / "b.lmdb")
    for arguments in (
        ["--help"], ["convert", root, place, "-q", "--shuffle-seed", "3"], ["info", place], ["verify", place],
        ["convert", root, tmp_path / "c.lmdb", "--short-side", "20", "--tile", "--quality", "80"],
        ["convert", root, tmp_path / "d.lmdb", "--raw"], ["copy", place, mongo_uri], ["copy", mongo_uri, copy],
    ):  # fmt: skip
        run(command(*arguments), environment)
    assert run(command("bench", place), environment, 2) == f"Error: bench {NEEDED}\n"


def test_doctor_names_what_needs_torch(environment: dict[str, str]) -> None:
    printed = subprocess.run(command("doctor"), env=environment, capture_output=True, text=True, check=False).stdout
    (line,) = [line for line in printed.splitlines() if "torch  " in line]
    assert line.startswith("warning  torch  ")
    assert "CUDA devices are unknown" in line
    assert line.endswith("; pip install torch")


def test_python_api_converts_and_reads_without_torch(tmp_path: Path, environment: dict[str, str]) -> None:
    root = plant_photos(tmp_path / "images", 6)
    script = """
import sys
from dbloader import PrefetchLoader, convert, copy_store, open_store, write_store
root, folder = sys.argv[1:]
convert(root, folder + "/a.lmdb")
copy_store(folder + "/a.lmdb", folder + "/b.lmdb")
with open_store(folder + "/b.lmdb") as store:
    assert len(store) == 6 and store[0].name and store.verify()
    write_store(({"image": record.image, "label": record.label} for record in store), folder + "/c.lmdb")
assert len(open_store(folder + "/c.lmdb")) == 6
assert list(PrefetchLoader(range(5))) == [0, 1, 2, 3, 4]
"""
    assert python(script, root, tmp_path, environment=environment) == ""


# Exported names that do not need torch.
WITHOUT_TORCH = """
    __version__ DBLoaderError ImageFormat Listing PrefetchLoader Record Skip convert copy_store
    export_store find_duplicates open_store verify_store view write_store
"""
NEEDING = sorted({*dbloader.__all__} - {*WITHOUT_TORCH.split()})


def test_error_about_missing_torch_is_one_line_with_the_install_command(environment: dict[str, str]) -> None:
    script = """
import sys, dbloader
for name in sys.argv[1:]:
    try:
        exec(f"from dbloader import {name}")
    except ImportError as error:
        print(error)
        assert error.name == "torch"
"""
    printed = python(script, *NEEDING, environment=environment)
    assert printed.splitlines() == [f"dbloader.{name} {NEEDED}" for name in NEEDING]
