"""``python -m dbloader.timm`` runs a script of timm's on stores. tests/torchvision runs it with timm itself."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dbloader import write_store
from dbloader.errors import OptionError
from dbloader.timm import main, open_store
from tests.support import jpegs

# What the scripts see of timm.
TIMM = "def create_dataset(name, root=None, split='validation', **options):\n    return f'{name} of timm'\n"
SCRIPT = """
import sys
from beside import batch_size
from timm.data import create_dataset

train = create_dataset("", root=sys.argv[1], split="train", class_map="", batch_size=batch_size, repeats=0.0)
other = create_dataset("hfds/cats", root="", split="train")
print(type(train).__name__, len(train), train[0][0].size, other, sys.argv[1:], __name__)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").touch()
    (tmp_path / "timm" / "data.py").write_text(TIMM)
    (tmp_path / "beside.py").write_text("batch_size = 8\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    write_store(((jpegs.draw(40, 30, seed=n), n) for n in range(3)), tmp_path / "train.lmdb")
    return tmp_path


@pytest.mark.slow
def test_a_script_of_timms_gets_a_store_where_it_names_no_other_dataset(folder: Path) -> None:
    place = f"{folder}/{{split}}.lmdb"
    command = [sys.executable, "-m", "dbloader.timm", "train.py", place, "--lr=1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"LMDBDataset 3 (40, 30) hfds/cats of timm {[place, '--lr=1']} __main__\n"


def test_without_a_script_it_says_how_it_is_called() -> None:
    for arguments in ([], ["--help"]):
        with pytest.raises(SystemExit, match=r"^usage: python -m dbloader.timm SCRIPT \[ARGUMENT ...\], such as"):
            main(arguments)
    with pytest.raises(SystemExit, match=r"^there is no script 'nowhere.py'; timm's are in its repository"):
        main(["nowhere.py"])


def test_options_that_are_for_folders_are_refused(folder: Path) -> None:
    place = str(folder / "train.lmdb")
    assert len(open_store(place, "train", class_map="", input_img_mode="RGB", search_split=True, num_samples=None)) == 3
    folders_only: dict[str, Any] = {"class_map": "map.txt", "load_bytes": True, "input_img_mode": "L"}
    for name, value in folders_only.items():
        with pytest.raises(OptionError, match=rf"^{name}={value!r} is for folders of images, not for the store"):
            open_store(place, **{name: value})
    with pytest.raises(OptionError, match=r"^--data-dir must be the place of a store"):
        open_store(None)
    with pytest.raises(FileNotFoundError, match="validation"):
        open_store(f"{folder}/{{split}}.lmdb", "validation")
