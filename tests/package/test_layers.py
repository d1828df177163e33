"""Each room imports only lower rooms, and torch is imported only where it is needed."""

from __future__ import annotations

import ast
import sys
from functools import cache
from itertools import filterfalse
from pathlib import Path

import pytest

import dbloader
from dbloader._extensions import EXTENSIONS, extension
from tests.support.children import run_program

ROOT = Path(dbloader.__file__).parent

# docs/design.md. A room imports only rooms in the rows below its own.
CORE = (
    {"__main__"},
    {"cli"},
    {"loading"},
    {"batches", "checking"},
    {"conversion", "datasets"},
    {"sources", "device"},
    {"stores", "decoding", "sampling"},
    {"records"},
    {"images"},
    {"_describe", "_extensions", "_lazy", "_machine", "_options", "_parallel", "_places", "_version", "errors"},
)
# What stands around the core, in dbloader/ext. These rooms may import any room of the core.
AROUND = (
    {"ext.cli"},
    {"ext.viewing"},
    {"ext.collecting", "ext.copying", "ext.exports", "ext.fusing", "ext.measuring", "ext.mixing", "ext.parts"},
    {"ext.caching", "ext.comparing", "ext.datasets", "ext.duplicates"},
    {"ext.sources"},
    {"ext.publishing", "ext.queries"},
    {"ext", "ext.batches", "ext.decoding", "ext.device", "ext.images", "ext.remote", "ext.sampling"},
)
LAYERS = (*AROUND, *CORE)
MOST_LINES = 20_000
# These packages of the core name things around it, such as `MultiCrop`, and import them at their first use.
FACES = ("decoding", "device", "sampling")
ROWS = {name: row for row, names in enumerate(LAYERS) for name in names}
# These modules work with any iterable of batches, so they import nothing that handles stores, even indirectly.
OF_ANY_ITERABLE = (
    "loading.background",
    "loading.checkpoint",
    "loading.compat",
    "loading.iteration",
    "loading.prefetch",
    "loading.stats",
    "loading.torch_workers",
    "device.transfer",
    "device.preparation",
)


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, including imports in functions and for types.

    ``""`` is dbloader itself.
    """
    paths = (path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): ROOT / path for path in paths}
    found: dict[str, set[str]] = {}
    for module, path in names.items():
        seen = found.setdefault(module, set())
        for node in ast.walk(ast.parse(path.read_text())):
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


@cache
def reached(start: str) -> set[str]:
    """Return a module and all modules that it imports, directly or indirectly."""
    found: set[str] = set()
    new = {start}
    while new:
        found |= new
        new = {other for module in new for other in imports()[module]} - found
    return found


def room(module: str) -> str:
    """Return the room of a module: its package; for ``ext``, the package inside."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "ext" else parts[0]


def is_core(module: str) -> bool:
    return not room(module).startswith("ext")


def test_rooms_import_only_rooms_below_them() -> None:
    for module, imported in imports().items():
        own = room(module)
        assert own in ROWS, f"{own} has no row: give it one here and in docs/design.md"
        for other in imported:
            assert other, f"{module} imports dbloader itself, not the module with the name"
            inside = (
                room(other) == own
                or (module in FACES and not is_core(other))
                or (own.startswith("_") and other in ("_describe", "errors"))
            )
            assert inside or ROWS[room(other)] > ROWS[own], f"{module} imports {other}, which is not below it"


def test_rows_name_exactly_the_existing_rooms() -> None:
    assert set(ROWS) == {room(module) for module in imports()}


def test_imports_form_no_cycle() -> None:
    assert [module for module in imports() if module in set().union(*map(reached, imports()[module]))] == []


@pytest.mark.parametrize("name", OF_ANY_ITERABLE)
def test_prefetching_imports_nothing_about_stores(name: str) -> None:
    known = {*OF_ANY_ITERABLE, "batches.timed"}
    known |= {"sampling.base", "sampling.ranks", "sampling.rng"}
    assert {other for other in reached(name) if ROWS[room(other)] < ROWS["_machine"]} <= known


def test_core_imports_nothing_around_it() -> None:
    core = [module for module in imports() if is_core(module) and module not in FACES]
    assert {module: found for module in core if (found := [*filterfalse(is_core, imports()[module])])} == {}


def test_core_has_at_most_so_many_lines() -> None:
    paths = [ROOT.joinpath(*module.split(".")) for module in imports() if is_core(module)]
    files = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES


@pytest.mark.parametrize("name", EXTENSIONS)
def test_every_extension_is_where_the_table_says(name: str) -> None:
    assert extension(name).__module__ == f"dbloader.ext.{EXTENSIONS[name]}"


def loaded(code: str, *arguments: str) -> set[str]:
    """Run a program in a new process, and return the modules that are loaded afterwards."""
    program = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    _, stderr = run_program(sys.executable, "-c", program, *arguments)
    return set(stderr.split())


@pytest.mark.slow
def test_torch_is_imported_only_where_needed() -> None:
    program = """
import dbloader, dbloader.cli, dbloader.loading.prefetch, dbloader.loading.compat, dbloader.loading.worker_start
dbloader.__version__, dir(dbloader)
from dbloader import DBLoaderError, Record, convert, open_store, write_store
from dbloader.stores.open import create_store
"""
    assert not {"torch", "torchvision"} & loaded(program)


def test_import_dbloader_imports_no_large_package() -> None:
    assert not {"numpy", "bson", "lmdb", "PIL"} & loaded("import dbloader")
