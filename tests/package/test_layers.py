"""Imports point downwards only, and torch is imported only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import dbloader

ROOT = Path(dbloader.__file__).parent

# docs/design.md. A room may import what stands in a row below its own; one not named here fails the tests.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"viewing"},
    {"loading"},
    {"batches", "checking", "copying"},
    {"conversion", "datasets", "exports"},
    {"sources", "device", "caching"},
    {"stores", "decoding", "sampling"},
    {"records", "images", "remote"},
    {"_describe", "_lazy", "_machine", "_options", "_version", "errors"},
)
ROWS = {name: row for row, names in enumerate(LAYERS) for name in names}
# These work on any iterable of batches, so nothing that they import, however far down, knows of stores.
OF_ANY_ITERABLE = (
    "loading.background",
    "loading.checkpoint",
    "loading.compat",
    "loading.iteration",
    "loading.prefetch",
    "loading.stats",
    "loading.workers",
    "device.transfer",
    "device.preparation",
)


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def dotted(path: Path) -> str:
    """Return the name of a module below dbloader: ``stores.base`` of ``stores/base.py``."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def imports() -> dict[str, set[str]]:
    """Return which modules each module imports, at its top, in a function or for types only; ``""`` is dbloader."""
    names = {dotted(path) for path in modules()}
    found: dict[str, set[str]] = {}
    for path in modules():
        seen = found.setdefault(dotted(path), set())
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            full = []
            if isinstance(node, ast.Import):
                full = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} has a relative import"
                full = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in full:
                package, _, rest = name.partition(".")
                if package == "dbloader":
                    parts = rest.split(".")
                    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
                    seen.add(next((prefix for prefix in prefixes if prefix in names), ""))
    return found


def reached(start: str) -> set[str]:
    """Return what a module imports, and what that imports, and so on."""
    found: set[str] = set()
    new = {start}
    while new:
        found |= new
        new = {other for module in new for other in imports()[module]} - found
    return found - {start}


def room(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_point_downwards(path: Path) -> None:
    own = room(dotted(path))
    assert own in ROWS, f"{own} has no layer: give it one here and in docs/design.md"
    for other in imports()[dotted(path)]:
        assert other, f"{path} imports dbloader itself, not the module that has what it wants"
        inside = room(other) == own or (own.startswith("_") and other in ("_describe", "errors"))
        assert inside or ROWS[room(other)] > ROWS[own], f"{path} imports {other}, which is not below it"


def test_no_layer_is_named_that_does_not_exist() -> None:
    assert set(ROWS) == {room(dotted(path)) for path in modules()}


@pytest.mark.slow
@pytest.mark.parametrize("path", modules(), ids=str)
def test_no_import_goes_in_a_circle(path: Path) -> None:
    module = dotted(path)
    assert module not in {other for one in imports()[module] for other in reached(one) | {one}}


@pytest.mark.parametrize("name", OF_ANY_ITERABLE)
def test_prefetching_knows_nothing_of_stores(name: str) -> None:
    known = {*OF_ANY_ITERABLE, "batches.timed"}
    known |= {"sampling.base", "sampling.ranks", "sampling.rng"}
    assert {other for other in reached(name) if ROWS[room(other)] < ROWS["_machine"]} <= known


def test_the_checks_see_imports_in_functions() -> None:
    assert "device.transfer" in imports()["loading.prefetch"]
    assert reached("cli.convert") >= {"conversion.convert", "stores.open", "records.record", "errors"}


def loaded(code: str, *arguments: str) -> set[str]:
    """Return the modules that are loaded after a program has run, in a process of its own."""
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.slow
def test_torch_is_not_imported_where_it_is_not_needed() -> None:
    program = """
import dbloader, dbloader.cli, dbloader.loading.prefetch, dbloader.loading.compat
dbloader.__version__, dir(dbloader)
from dbloader import DBLoaderError, Record, convert, open_store, write_store
from dbloader.stores.open import create_store
"""
    assert not {"torch", "torchvision"} & loaded(program)


def test_importing_dbloader_imports_next_to_nothing() -> None:
    assert not {"numpy", "bson", "lmdb", "PIL"} & loaded("import dbloader")
