"""No data can make dbloader run code. The lint rules that ensure this are on, without exemptions in dbloader/."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A line that could execute data, and the rule that refuses it.
UNSAFE = {
    "pickle.load(open('x', 'rb'))": "S301",
    "pickle.loads(b'')": "S301",
    "dill.loads(b'')": "S301",
    "class Mine(pickle.Unpickler): ...": "TID251",
    "import shelve": "TID251",
    "marshal.loads(b'')": "S302",
    "eval('1')": "S307",
    "exec('1')": "S102",
    "torch.load('x')": "TID251",
    "np.load('x', allow_pickle=True)": "TID251",
    "yaml.load('x')": "S506",
    "tarfile.open('x').extractall('y')": "S202",
    "tempfile.mktemp()": "S306",
    "subprocess.run('ls', shell=True, check=True)": "S602",
    "os.system('ls')": "S605",
}
IMPORTS = "import dill, marshal, os, pickle, subprocess, tarfile, tempfile, torch, yaml; import numpy as np"


def lint(*arguments: str, text: str | None = None) -> set[tuple[str, str, int]]:
    """Return the rule, file and line of each ruff finding, with the project's settings."""
    program = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=json", *arguments]
    done = subprocess.run(program, cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    return {(one["code"], Path(one["filename"]).name, one["location"]["row"]) for one in json.loads(done.stdout)}


def test_lint_refuses_code_that_could_execute_data() -> None:
    found = lint("--stdin-filename", "dbloader/new.py", "-", text="\n".join([IMPORTS, *UNSAFE]))
    assert {(rule, "new.py", line) for line, rule in enumerate(UNSAFE.values(), 2)} <= found


def test_only_the_reader_of_pickles_breaks_a_lint_rule_against_unsafe_code() -> None:
    rules = ",".join({*UNSAFE.values(), "S604"})
    found = lint("--ignore-noqa", "--select", rules, "dbloader")
    assert {(rule, file) for rule, file, _ in found} == {("TID251", "pickles.py")}


def test_each_torch_load_has_weights_only() -> None:
    calls = 0
    for folder, kind in (("docs", "*.md"), ("docs", "*.py"), ("scripts", "*.py"), ("tests", "*.py")):
        for path in (ROOT / folder).rglob(kind):
            for arguments in re.findall(r"torch\.load\((.*)", path.read_text()) if path != Path(__file__) else ():
                calls += 1
                assert "weights_only=True" in arguments, path
    assert calls > 5
