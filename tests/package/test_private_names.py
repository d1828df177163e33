"""No module uses a private name of another module.

Private names of other packages are used only if nothing else works.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import dbloader

ROOT = Path(dbloader.__file__).parent
_WORKERS = "torch shows no other way to end the worker processes of an iterator that was dropped"
_TOP = ("_describe", "_extensions", "_lazy", "_machine", "_options", "_parallel", "_places", "_version")
OTHER_PACKAGES = {
    **dict.fromkeys(("_asdict", "_fields", "_make", "_replace"), "public: methods of named tuples"),
    **dict.fromkeys(("_exit", "_getframe", "_is_gil_enabled"), "public: functions of os and sys that Python documents"),
    **dict.fromkeys(("_C", "_remove_worker_pids", "_shutdown_workers", "_tasks_outstanding", "_workers"), _WORKERS),
    **dict.fromkeys(("_index_queues", "_worker_result_queue", "_workers_done_event", "_pin_memory_thread"), _WORKERS),
    "_iterator": "torch's loader keeps persistent workers here, and shows no other way to end or replace them",
    "_parent_pid": "multiprocessing shows whose child a process is only by errors",
    "_persistent_workers": "torch's iterator alone knows whether its workers stay for the next epoch",
    "_utils": "torch has pinning of any batch in torch.utils.data._utils, and errors of workers in torch._utils",
    "_worker_info": "torch.utils.data.get_worker_info() shows a dataset what only torch's own workers set",
    **dict.fromkeys(("_add_dataloader", "_remove_dataloader"), "Accelerate asks the loaders registered with these"),
    "_ServerMode": "the type of all read preferences of pymongo",
    "_target_types": "torchvision's OxfordIIITPet shows only here which of its two lists of classes names the labels",
    "_orig_mod": "a module compiled by torch shows the original only here",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(value: ast.expr) -> bool:
    """Return whether an attribute belongs to ``self``, ``cls`` or ``super()``."""
    value = value.func if isinstance(value, ast.Call) else value
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "super")


def foreign_names(text: str) -> set[str]:
    """Return the private names of other objects that a module uses and does not define."""
    used, own = set(), set(_TOP)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Attribute):
            if not is_own(node.value):
                used.add(node.attr)
            elif isinstance(node.ctx, ast.Store):
                own.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            used |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            used |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            used |= {
                name.value for name in node.args[1:2] if isinstance(name, ast.Constant) and isinstance(name.value, str)
            }
    return {name for name in used - own if is_private(name)}


@pytest.mark.parametrize("room", sorted(path.name for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()))
def test_no_module_uses_a_private_name_of_another(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py")) or [ROOT / room]
    found = {path.name: foreign_names(path.read_text()) - {*OTHER_PACKAGES} for path in files if path.suffix == ".py"}
    assert not {name: names for name, names in found.items() if names}


class Class(NamedTuple):
    bases: set[str]
    """Full names, such as ``stores.base.Store``."""

    used: set[str]
    """The private names that the class body and its methods use through ``self``, ``cls`` or ``super()``."""

    defined: set[str]
    """The private names that the class body defines, and those that the methods set."""


@cache
def classes() -> dict[str, Class]:
    """Return the classes of dbloader by their full names."""
    found: dict[str, Class] = {}
    for path in ROOT.rglob("*.py"):
        module, tree = ".".join(path.relative_to(ROOT).with_suffix("").parts), ast.parse(path.read_text())
        imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dbloader."):
                imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}"[9:] for alias in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
                bases = {imported.get(base.id, f"{module}.{base.id}") for base in names if isinstance(base, ast.Name)}
                found[f"{module}.{node.name}"] = Class(bases, *names_of(node))
    return found


def names_of(body: ast.ClassDef) -> tuple[set[str], set[str]]:
    """Return the private names that a class uses through ``self``, and those that it defines."""
    attributes = [node for node in ast.walk(body) if isinstance(node, ast.Attribute) and is_own(node.value)]
    own = {node.name for node in body.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in body.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        own |= {target.id for target in targets if isinstance(target, ast.Name)}
    stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
    used = {node.attr for node in attributes}
    return {*filter(is_private, own | used)}, {*filter(is_private, own | stored)}


def room(name: str) -> str:
    """Return the room of a class."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "ext" else parts[0]


def bases_of(name: str) -> set[str]:
    """Return all base classes of a class that are in dbloader."""
    direct = {base for base in classes()[name].bases if base in classes()}
    return direct.union(*map(bases_of, direct))


def test_no_class_uses_a_private_name_of_a_base_in_another_room() -> None:
    found = {}
    for name, own in classes().items():
        others = [base for base in bases_of(name) if room(base) != room(name)]
        found[name] = own.used.intersection(*[set().union(*(classes()[base].defined for base in others))])
    assert not {name: names for name, names in found.items() if names}
