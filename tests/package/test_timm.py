"""The recipe of docs/integrations.md lets timm's scripts train on a store. tests/torchvision runs timm itself."""

import sys
from pathlib import Path

import pytest

from dbloader import write_store
from tests.support import jpegs
from tests.support.children import run_program
from tests.support.docs import block_with

# A stand-in for the parts of timm that the scripts use.
TIMM = "def create_dataset(name, root=None, split='validation', **options):\n    return f'{name} of timm'\n"
SCRIPT = """
import sys
from timm.data import create_dataset

train = create_dataset("", root=sys.argv[1], split="train", class_map="", batch_size=8, repeats=0.0)
print(type(train).__name__, len(train), train[0][0].size, sys.argv[1:], __name__)
"""


@pytest.mark.slow
def test_script_of_timm_trains_on_a_store(tmp_path: Path) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").touch()
    (tmp_path / "timm" / "data.py").write_text(TIMM)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "timm_on_stores.py").write_text(block_with("integrations", "runpy"))
    write_store(((jpegs.draw(40, 30, seed=n), n) for n in range(3)), tmp_path / "train.lmdb")
    place = f"{tmp_path}/{{split}}.lmdb"
    printed, _ = run_program(sys.executable, "timm_on_stores.py", "train.py", place, "--lr=1", cwd=tmp_path)
    assert printed == f"LMDBDataset 3 (40, 30) {[place, '--lr=1']} __main__\n"
