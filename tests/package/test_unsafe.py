"""No data can make dbloader run code. The lint rules that ensure this are on, without exemptions in dbloader/."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

UNSAFE = {
    "import pickle\n\nLOADED = pickle.load(open('x', 'rb'))\n": "S301",
    "import pickle\n\nLOADED = pickle.loads(b'')\n": "S301",
    "import dill\n\nLOADED = dill.loads(b'')\n": "S301",
    "import pickle\n\n\nclass Mine(pickle.Unpickler): ...\n": "TID251",
    "import shelve\n\nLOADED = shelve.open('x')\n": "TID251",
    "import marshal\n\nLOADED = marshal.loads(b'')\n": "S302",
    "LOADED = eval('1')\n": "S307",
    "exec('1')\n": "S102",
    "import torch\n\nLOADED = torch.load('x')\n": "TID251",
    "from torch import load\n\nLOADED = load('x')\n": "TID251",
    "import numpy as np\n\nLOADED = np.load('x', allow_pickle=True)\n": "TID251",
    "import yaml\n\nLOADED = yaml.load('x')\n": "S506",
    "import tarfile\n\ntarfile.open('x').extractall('y')\n": "S202",
    "import tempfile\n\nPATH = tempfile.mktemp()\n": "S306",
    "import subprocess\n\nsubprocess.run('ls', shell=True, check=True)\n": "S602",
    "import os\n\nos.system('ls')\n": "S605",
}


def lint(*arguments: str, text: str | None = None) -> set[tuple[str, str]]:
    """Return the rule code and file of each ruff finding, with the project's settings."""
    program = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", *arguments]
    done = subprocess.run(program, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    return {(found["code"], Path(found["filename"]).name) for found in json.loads(done.stdout)}


@pytest.mark.parametrize("text", UNSAFE)
def test_lint_refuses_code_that_could_execute_data(text: str) -> None:
    assert (UNSAFE[text], "new.py") in lint("--stdin-filename", "dbloader/new.py", "-", text=text)


def test_only_the_reader_of_pickles_is_exempt() -> None:
    rules = ",".join({*UNSAFE.values(), "S604"})
    assert lint("--ignore-noqa", "--select", rules, "dbloader") == {("TID251", "pickles.py")}


def test_each_torch_load_has_weights_only() -> None:
    calls = 0
    for folder, kind in (("docs", "*.md"), ("docs", "*.py"), ("scripts", "*.py"), ("tests", "*.py")):
        for path in (ROOT / folder).rglob(kind):
            for arguments in re.findall(r"torch\.load\((.*)", path.read_text()) if path != Path(__file__) else ():
                calls += 1
                assert "weights_only=True" in arguments, path
    assert calls > 5
