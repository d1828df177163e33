"""Print docs/api.md: every public name with its signature and the first paragraph of its docstring."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

# What each public module is for. Everything else in the package is private.
MODULES = {
    "dbloader": "What most programs need.",
    "dbloader.decoding": "Decoders, for `decode=` of a dataset: from the bytes of an image to pixels.",
    "dbloader.sampling": "Samplers for a DataLoader, whose order can be resumed, and the random numbers of samples.",
    "dbloader.device": "Modules for `preparation=` of a loader: they work on batches, on the GPU or on the CPU.",
    "dbloader.loading.compat": "For code that was written for other recipes.",
    "dbloader.images.tiled": "Tiled JPEGs: ordinary JPEGs of which a crop is decoded without the rest.",
    "dbloader.errors": "All exceptions. Each one is a `DBLoaderError` and also the built-in exception that fits.",
}
# Returned by functions and methods of the above; never made by users.
RETURNED = (
    "dbloader.conversion.report.Report",
    "dbloader.conversion.report.Progress",
    "dbloader.records.manifest.Manifest",
    "dbloader.loading.stats.Stats",
    "dbloader.stores.base.Store",
    "dbloader.stores.writer.Writer",
)


HEAD = """\
# Python API

Every public name, written by `scripts/docs` from the docstrings. `help(name)` in Python shows the arguments with
their types, shapes, ranges and errors. Names that are not on this page may change at any time.
"""


def paragraph(value: Any) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0]


def signature(name: str, value: Any) -> str:
    """Return how a class or function is called, without types."""
    if not callable(value):
        return f"{name} = {value!r}"
    if isinstance(value, type) and issubclass(value, BaseException):
        return f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    # A class may have a __new__ of its own, whose arguments say nothing.
    called = inspect.getattr_static(value, "__init__") if isinstance(value, type) else value
    parameters = inspect.signature(called).parameters.items()
    given = [item for name, item in parameters if name != "self" and not name.startswith("_")]
    text = str(inspect.Signature([item.replace(annotation=inspect.Parameter.empty) for item in given]))
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)
    text = re.sub(r"<function <lambda> at 0x\w+>|<factory>", "...", text)
    return f"class {name}{text}" if isinstance(value, type) else f"{name}{text}"


def members(value: Any, public: set[type]) -> list[str]:
    """Return the names of the methods and properties that no base on this page, and none outside dbloader, has."""
    if not isinstance(value, type) or issubclass(value, BaseException):
        return []
    names = []
    for name in sorted(dir(value)):
        owner = next(base for base in value.__mro__ if name in vars(base) or base is object)
        member = inspect.getattr_static(value, name)
        inherited = owner is not value and (owner in public or not owner.__module__.startswith("dbloader"))
        if name.startswith("_") or inherited or not paragraph(getattr(value, name)):
            continue
        if callable(member) or isinstance(member, (classmethod, staticmethod, property)):
            names.append(name)
    return names


def member_line(value: Any, name: str) -> str:
    brackets = "" if isinstance(inspect.getattr_static(value, name), property) else "()"
    return f"- `{name}{brackets}`: {first_sentence(getattr(value, name))}"


def public_classes() -> set[type]:
    return {value for module in MODULES for value in vars_of(module).values() if isinstance(value, type)}


def first_sentence(value: Any) -> str:
    text = paragraph(value).replace("\n", " ")
    return text.partition(". ")[0].rstrip(".") + "."


def page() -> str:
    parts = [HEAD]
    public = public_classes()
    for module, text in MODULES.items():
        parts.append(f"## {module}\n\n{text}\n")
        for name, value in vars_of(module).items():
            if module != "dbloader" and name in vars_of("dbloader"):
                parts.append(f"### {module}.{name}\n\nThe same as `dbloader.{name}`.\n")
            else:
                parts.append(section(f"{module}.{name}", signature(name, value), value, public))
    parts.append("## Returned objects\n\nFunctions and methods return these. A program does not make them.\n")
    for path in RETURNED:
        module, _, name = path.rpartition(".")
        parts.append(section(name, "", getattr(import_module(module), name), public))
    return "\n".join(parts)


def vars_of(module: str) -> dict[str, Any]:
    exports = import_module(module)
    own = [name for name, value in vars(exports).items() if getattr(value, "__module__", None) == module]
    return {name: getattr(exports, name) for name in sorted(getattr(exports, "__all__", own)) if name != "__version__"}


def section(title: str, code: str, value: Any, public: set[type]) -> str:
    parts = [f"### {title}"]
    if code:
        parts.append(f"```text\n{code}\n```")
    parts.append(paragraph(value))
    lines = [member_line(value, name) for name in members(value, public)]
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
