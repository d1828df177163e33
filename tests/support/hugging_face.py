"""Programs that use Hugging Face's datasets.

Each runs in a new process, because datasets keeps settings and threads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.children import run_program

_BEGIN = """
import io, json
import datasets
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, Image, List, Value, load_dataset
datasets.disable_progress_bars()
"""


def run_datasets(folder: Path, program: str) -> str:
    """Run a program in a folder, and return what the program printed."""
    settings = {"HF_HOME": str(folder / ".hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return run_program(sys.executable, "-c", _BEGIN + program, cwd=folder, env={**os.environ, **settings})[0]
