"""Imports point downwards only, and torch is imported only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import dbloader

ROOT = Path(dbloader.__file__).parent

# docs/design.md. A module may import what stands in a row below its own; one not named here fails the tests.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"benchmarking"},
    {"loading", "recipes", "headspace"},
    {"choosing", "prefetch", "processes", "threads"},
    {"progress", "staging"},
    {"device_decoding", "preparation"},
    {"ahead", "device"},
    {"batches"},
    {"resuming", "stats"},
    {"timing"},
    {"datasets"},
    {"decoding", "encoded"},
    {"writing", "conversion", "copying", "listed", "warming"},
    {"samples"},
    {"stored"},
    {"sampling"},
    {"keys", "permutation"},
    {"mixing"},
    {"tiled"},
    {"sources", "images"},
    {"jpeg", "pillow"},
    {"entropy"},
    {"huffman"},
    {"stores"},
    {"manifest"},
    {"columns"},
    {"records"},
    {"documents", "values"},
    {"options"},
    {"describing"},
    {"errors", "machine", "version"},
)
ROWS = {name: row for row, names in enumerate(LAYERS) for name in names}
# These know nothing of stores: they work on any iterable.
OF_ANY_ITERABLE = (
    "prefetch",
    "staging",
    "ahead",
    "device",
    "preparation",
    "resuming",
    "timing",
    "stats",
    "progress",
    "describing",
)


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def component(path: Path) -> str:
    """Gives the part of the package that a file belongs to: ``stores`` of ``stores/base.py``."""
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Gives the parts of the package that a file imports anywhere, ``""`` for the package itself."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "dbloader":
                first = rest.split(".")[0]
                found.add(first if first in {component(module) for module in modules()} else "")
    return found


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_point_downwards(path: Path) -> None:
    own = component(path)
    assert own in ROWS, f"{own} has no layer: give it one here and in docs/design.md"
    for other in imported(path) - {own}:
        assert other, f"{path} imports dbloader itself, not the module that has what it wants"
        assert ROWS[other] > ROWS[own], f"{path} imports {other}, which is not below it"


def test_no_layer_is_named_that_does_not_exist() -> None:
    assert set(ROWS) == {component(path) for path in modules()}


def everything_imported(name: str) -> set[str]:
    """Gives what a part of the package imports, and what that imports, and so on."""
    found: set[str] = set()
    new = {name}
    while new:
        found |= new
        new = {other for path in modules() if component(path) in new for other in imported(path)} - found
    return found - {name}


@pytest.mark.parametrize("name", OF_ANY_ITERABLE)
def test_prefetching_knows_nothing_of_stores(name: str) -> None:
    assert everything_imported(name) <= {*OF_ANY_ITERABLE, "keys", "mixing", "machine", "errors", "version"}


def test_the_checks_see_imports_in_functions() -> None:
    assert "device" in imported(Path("prefetch.py"))
    assert everything_imported("cli") >= {"conversion", "stores", "records", "errors"}


def loaded(code: str, *arguments: str) -> set[str]:
    """Gives the modules that are loaded after a program has run, in a process of its own."""
    program = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


COMMAND_LINE = """
from dbloader.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""


@pytest.mark.parametrize(
    "code",
    [
        "import dbloader; dbloader.__version__, dir(dbloader)",
        "from dbloader import convert",
        "from dbloader import Record, create_store, open_store, write_store, DBLoaderError",
        "import dbloader.prefetch, dbloader.ahead",
        "import dbloader.cli",
    ],
)
def test_torch_is_not_imported_where_it_is_not_needed(code: str) -> None:
    assert not {"torch", "torchvision"} & loaded(code)


def test_importing_dbloader_imports_next_to_nothing() -> None:
    assert not {"numpy", "bson", "lmdb", "PIL"} & loaded("import dbloader")


def test_a_dataset_imports_torch() -> None:
    assert "torch" in loaded("from dbloader import LMDBDataset")


def test_the_command_line_does_not_import_torch(tmp_path: Path) -> None:
    folder, place = tmp_path / "folder", str(tmp_path / "store.lmdb")
    (folder / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "cat" / "1.png")
    for arguments in (
        ["--help"],
        ["--version"],
        ["convert", "--help"],
        ["convert", str(folder), place],
        ["info", place],
        ["verify", place],
    ):
        modules = loaded(COMMAND_LINE, *arguments)
        assert "dbloader.cli" in modules
        assert "torch" not in modules, arguments
