"""Import the names of a package when they are first used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package that imports each name at its first use.

    Some names need torch, but most commands do not use these names. Importing torch takes over a second and 300 MB.

    Args:
        package: Full name of the package.
        modules: Maps each name to the module that defines it, relative to dbloader.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"dbloader.{modules[name]}")
        except ModuleNotFoundError as error:
            remedy = {"torch": "pip install torch", "dbloader.ext": "install dbloader again"}.get(error.name or "")
            if remedy is None:
                raise
            message = f"{package}.{name} needs {error.name}, which is not installed here: {remedy}"
            raise ImportError(message, name=error.name) from None
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute, lambda: list(modules), list(modules)
