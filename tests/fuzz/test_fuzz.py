"""Readers of untrusted data keep their promises for any bytes.

scripts/fuzz searches for inputs that break a promise.
"""

from __future__ import annotations

import random
import resource
import warnings
from pathlib import Path

import pytest

from tests.fuzz.run import MEBIBYTES, kept
from tests.fuzz.targets import TARGETS, mutate
from tests.support.children import in_child


@pytest.mark.slow
@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a process reads this variable only once, so set it in the child
    monkeypatch.setenv("DBLOADER_MAX_PIXELS", "1000000")
    target, last = TARGETS[name], tmp_path / "input"
    inputs = kept(name)
    rng = random.Random(name)

    def run() -> None:
        warnings.simplefilter("ignore")  # Pillow's
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEBIBYTES * 2**20,) * 2)
        for number in range(len(inputs) + count):
            data = inputs[number] if number < len(inputs) else mutate(rng, inputs)
            last.write_bytes(data)  # after a crash of the interpreter, this file still contains the input
            target(data, tmp_path)

    status = in_child(run)
    assert status == 0, f"scripts/fuzz {name} --input FILE, of the bytes {last.read_bytes().hex()}"
