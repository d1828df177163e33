"""Without the folder dbloader/ext, the core works, and the rest raises a one-line error that names the folder."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import dbloader
import dbloader.decoding
import dbloader.device
import dbloader.sampling
from dbloader._extensions import COMMANDS
from tests.support.children import run_program
from tests.support.images import plant_photos

MISSING = "dbloader.ext, which is not installed here: install dbloader again"

# Each command line is a word list, run by one process, which prints [status, stdout and stderr] for each.
RUN = """
import contextlib, io, json, sys
from dbloader.cli import main
for words in json.loads(sys.argv[1]):
    printed, sys.argv = io.StringIO(), ["dbloader", *words]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as stop:
            status = stop.code
    print(json.dumps([status, printed.getvalue()]))
"""

# Each statement is run by one process, which prints the class and the text of its error.
STATEMENTS = """
import json, sys
import dbloader
from dbloader import LMDBDataset, Listing, MongoDataset, convert, create_loader, open_store, verify_store
for statement in json.loads(sys.argv[1]):
    try:
        exec(statement)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
    else:
        print(json.dumps(["", ""]))
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the core alone, a folder of images, and a store of them."""
    folder = tmp_path_factory.mktemp("core")
    package = Path(dbloader.__file__).parent

    def left_out(path: str, _: list[str]) -> set[str]:
        return {"ext"} if Path(path) == package else {"__pycache__"}

    shutil.copytree(package, folder / "dbloader", ignore=left_out)
    plant_photos(folder / "images", 6)
    (folder / "images.zip").touch()
    assert commands(folder, ["convert", "images", "store.lmdb"])[0][0] == 0
    return folder


def results(core: Path, program: str, items: Any) -> list[list[Any]]:
    environment = {**os.environ, "PYTHONPATH": str(core)}
    stdout, stderr = run_program(sys.executable, "-c", program, json.dumps(items), cwd=core, env=environment)
    assert stderr == ""
    return [json.loads(line) for line in stdout.splitlines()]


def commands(core: Path, *lines: list[str]) -> list[list[Any]]:
    return results(core, RUN, lines)


def test_core_commands_work_without_the_extensions(core: Path) -> None:
    names = [name for name, module in COMMANDS.items() if not module.startswith("ext.")]
    (status, printed), *rest = commands(
        core, ["--help"], ["convert", "images", "b.lmdb", "--tile"], ["info", "b.lmdb"], ["verify", "b.lmdb"]
    )
    listed = printed.partition("Commands:\n")[2].partition("\n\n")[0]
    assert (status, [line.split()[0] for line in listed.splitlines()]) == (0, names)
    assert [found[0] for found in rest] == [0, 0, 0]


def test_command_that_needs_the_extensions_is_one_line(core: Path) -> None:
    lines = [[name, "store.lmdb"] for name, module in COMMANDS.items() if module.startswith("ext.")]
    lines += [["convert", "images", "c.lmdb", "--listing", "a.csv"], ["convert", "images.zip", "c.lmdb"]]
    lines += [["convert", "images", "c.lmdb", *more] for more in (["--dry-run"], ["--shards", "2"], ["--append"])]
    lines += [["convert", "s3://bucket/images", "c.lmdb"], ["info", "s3://bucket/c.lmdb"]]
    lines += [["verify", "store.lmdb", "--against", "images"]]
    for line, (status, printed) in zip(lines, commands(core, *lines), strict=True):
        assert (status, printed.count("\n"), printed.startswith("Error: ")) == (2, 1, True), (line, printed)
        assert MISSING in printed, (line, printed)


def test_public_name_that_needs_the_extensions_is_an_import_error(core: Path) -> None:
    faces = (dbloader, dbloader.decoding, dbloader.device, dbloader.sampling)
    names = [(face.__name__, name) for face in faces for name in face.__all__]
    found = results(core, STATEMENTS, [f"from {face} import {name}" for face, name in names])
    missing = [name for name, (error, _) in zip(names, found, strict=True) if error]
    assert len(missing) == 7 + 2 + 1 + 3
    for (face, name), (error, text) in zip(names, found, strict=True):
        if error:
            wanted = f"{face}.{name} needs dbloader.ext, which is not installed here: install dbloader again"
            assert (error, text) == ("ImportError", wanted)


def test_call_that_needs_the_extensions_is_an_error_of_dbloader(core: Path) -> None:
    statements = [
        "LMDBDataset('store.lmdb', where='label=1')",
        "LMDBDataset('store.lmdb', cache='cache')",
        "MongoDataset.from_listing('mongodb://localhost/a.b', 'listing.json')",
        "open_store('s3://bucket/store.lmdb', cache='cache')",
        "create_loader(LMDBDataset('store.lmdb'), batch_size=2, device=None, is_training=False, even_batches=True)",
        "create_loader(LMDBDataset('store.lmdb'), batch_size=2, device=None, on_error=0.1)",
        "convert('images', 'd.lmdb', shards=2)",
        "convert('images', 'd.lmdb', listing=Listing('a.csv'))",
        "convert('images', 'd.lmdb', classes=['cat', 'dog'])",
        "convert('images', 'd.lmdb', boxes='stored')",
        "verify_store('store.lmdb', against='images')",
    ]
    found = results(core, STATEMENTS, statements)
    for statement, (error, text) in zip(statements, found, strict=True):
        assert (error, text.partition(" is in ")[2]) == ("DBLoaderError", MISSING), (statement, text)


def test_notebooks_show_the_repr_without_the_extensions(core: Path) -> None:
    shown = "[open_store('store.lmdb'), open_store('store.lmdb')[0], open_store('store.lmdb')[:2], "
    shown += "LMDBDataset('store.lmdb')]"
    statements = [f"assert [one._repr_html_() for one in {shown}] == [None] * 4"]
    assert results(core, STATEMENTS, statements) == [["", ""]]
