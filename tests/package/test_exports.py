"""``import dbloader`` exports names that are sorted and documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import dbloader
import dbloader.device
import dbloader.sampling


def test_exported_names_are_sorted() -> None:
    assert dbloader.__all__ == sorted(set(dbloader.__all__))
    assert dir(dbloader) == dbloader.__all__


@pytest.mark.parametrize("name", dbloader.__all__)
def test_exported_name_has_a_docstring(name: str) -> None:
    value = getattr(dbloader, name)
    assert value is getattr(dbloader, name)
    if name == "__version__":
        assert value.split(".")[0].isdigit()
        return
    assert value.__name__ == name
    assert value.__module__.split(".")[0] == "dbloader"
    text = inspect.getdoc(value) or ""
    assert text.split("\n")[0].endswith(".")


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dbloader' has no attribute 'nothing'$"):
        dbloader.nothing  # noqa: B018 - looking it up is what is tested
    assert not hasattr(dbloader, "Nothing")
    with pytest.raises(ImportError, match="cannot import name 'Nothing' from 'dbloader'"):
        from dbloader import Nothing  # noqa: F401


@pytest.mark.parametrize(
    "package", [dbloader, dbloader.device, dbloader.sampling], ids=lambda package: package.__name__
)
def test_type_checkers_find_the_same_objects_as_python(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    seen = {
        alias.name: str(node.module)
        for condition in tree.body
        if isinstance(condition, ast.If)
        for node in condition.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(seen) | {"__version__"} == set(package.__all__) | {"__version__"}
    for name, module in seen.items():
        assert getattr(import_module(module), name) is getattr(package, name)


@pytest.mark.slow
def test_exported_names_do_not_depend_on_earlier_imports() -> None:
    # A function and its module may have the same name.
    program = "\n".join(
        ["import dbloader, types"]
        + [f"from dbloader import {name}; assert not isinstance({name}, types.ModuleType)" for name in dbloader.__all__]
        + ["import importlib, pkgutil"]
        + ["for module in pkgutil.walk_packages(dbloader.__path__, 'dbloader.'):"]
        + ["    if module.name != 'dbloader.__main__': importlib.import_module(module.name)"]
        + [f"assert dbloader.{name} is {name}, {name!r}" for name in dbloader.__all__]
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
