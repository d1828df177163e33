"""A program prints nothing when it exits, whatever it has open and in whatever order Python frees the objects."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import dbloader
from tests.support.children import run_program
from tests.support.images import plant_photos

# Each program opens an object and assigns it to `it`. MONGO and PLACE are places of stores.
OPENED = {
    "a dataset": "it = LMDBDataset(PLACE); it[0]",
    "a store": "it = open_store(PLACE); it[0]",
    "two stores of one file": "it = [open_store(PLACE), open_store(PLACE)]; [store[0] for store in it]",
    "a writer": "it = create_store(PLACE + '2', overwrite=True); it.__enter__()",
    "a loader of threads, left in the middle": "it = [loader('threads')]; it.append(iter(it[0])); next(it[1])",
    "a loader of processes, left in the middle": "it = [loader('processes')]; it.append(iter(it[0])); next(it[1])",
    "a loader of threads without workers": "it = [loader('threads', 0)]; it.append(iter(it[0])); next(it[1])",
    "a DataLoader": (
        "it = iter(DataLoader(LMDBDataset(PLACE, decode=RandomResizedCrop(9)), 2, num_workers=1)); next(it)"
    ),
    "a prefetched DataLoader": (
        "it = PrefetchLoader(DataLoader(LMDBDataset(PLACE, decode=RandomResizedCrop(16)), 2, num_workers=1))\n"
        "it = [it, iter(it)]; next(it[1])"
    ),
    "a prefetched iterable": "it = iter(PrefetchLoader(range(100))); next(it)",
    "a background generator": "it = BackgroundGenerator(iter(LMDBDataset(PLACE)), 1); next(it)",
}
IN_MONGO = {
    "a dataset in MongoDB": "it = MongoDataset(MONGO); it[0]",
    "a cached dataset": "it = MongoDataset(MONGO, cache=PLACE + '.cache'); it[0]",
    "a store in MongoDB": "it = open_store(MONGO); it[0]",
    "a loader of a dataset in MongoDB": (
        "it = [loader('threads', dataset=MongoDataset(MONGO))]; it.append(iter(it[0])); next(it[1])"
    ),
}

# How the program still refers to the object when it exits.
HELD = {
    "as a global": "",
    "in a cycle that stays": "class Node: pass\nnode = Node(); node.self, node.it = node, it; del it",
    "in modules": "import json, torch; json.held = torch.held = sys.held = it; del it",
    "in a builtin": "import builtins; builtins.held = it; del it",
    "in a destructor": "class Held:\n    def __del__(self): self.it = None\nheld = Held(); held.it = it; del it",
    "in an exit handler": "import atexit; atexit.register(lambda held: None, it); del it",
}

# Imports are slow, so one process does them and forks a child for each case. The child exits as a program does.
SCRIPT = """
import os, sys, tempfile
from torch.utils.data import DataLoader
from dbloader import *
from dbloader.decoding import RandomResizedCrop
from dbloader.stores.open import create_store
from dbloader.loading.compat import BackgroundGenerator

PLACE, MONGO, *cases = sys.argv[1:]

def loader(workers, count=1, dataset=None):
    dataset = LMDBDataset(PLACE) if dataset is None else dataset
    return create_loader(dataset, batch_size=2, input_size=16, num_workers=count, worker_type=workers, device=None)

while cases:
    case = cases.pop()
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if not child:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            break
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        text = printed.read().decode()
        if status or text:
            print(f"exit status {status} of:\\n{case}\\nand it printed:\\n{text}")
if not child:
    del printed, cases
    exec(case)
"""


# This program prints when it exits, which proves that the script reports such output.
LOUD = """
class Loud:
    def __del__(self): raise RuntimeError('loud')
import json
json.held = Loud()
sys.exit(1)
"""


def check(cases: list[str], place: Path, mongo: str = "") -> None:
    """Run all programs, and check that only LOUD prints anything."""
    stdout, stderr = run_program(sys.executable, "-W", "ignore", "-c", SCRIPT, place, mongo, LOUD, *cases)
    assert stderr == ""
    assert re.fullmatch(r"exit status 256 of:.*RuntimeError: loud\s*", stdout, re.DOTALL), stdout
    assert stdout.count("exit status") == 1, stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    dbloader.convert(plant_photos(tmp_path / "images", 12), tmp_path / "s.lmdb")
    return tmp_path / "s.lmdb"


QUICK = ("in a cycle that stays", "in modules", "in a destructor")


def endings_of(opened: dict[str, str], held: Iterable[str], forks: int) -> list[str]:
    """Return programs that open all objects and exit, with different references to the objects, and after a fork."""

    def program(codes: list[str], *ending: str) -> str:
        return "\n".join(["every = []", *(f"{code}\nevery.append(it)" for code in codes), "it = every", *ending])

    codes = [*opened.values()]
    fork = "child = os.fork()\nif child: os.waitpid(child, 0)"
    endings = ("", "if not child: sys.exit()", "if not child: os._exit(0)", "sys.held = it; del it, every")
    # torch itself prints an error in a child that inherits the iterator of a DataLoader with workers.
    forkable = [code for name, code in opened.items() if "processes" not in name and "DataLoader" not in name]
    programs = [program(codes, "del every", HELD[name]) for name in held]
    return [*programs, *(program(forkable, fork, ending) for ending in endings[:forks])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "forks"), [(QUICK, 2), pytest.param((*HELD,), 4, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_program_and_its_fork_print_nothing_at_exit(held: tuple[str, ...], forks: int, place: Path) -> None:
    check(endings_of(OPENED, held, forks), place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "forks"), [(QUICK[1:], 1), pytest.param((*HELD,), 4, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_program_with_a_server_prints_nothing_at_exit(
    held: tuple[str, ...], forks: int, place: Path, mongo_uri: str
) -> None:
    dbloader.copy_store(place, mongo_uri)
    check(endings_of(IN_MONGO, held, forks), place, mongo_uri)
