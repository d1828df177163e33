"""Import the names of a package, and what draws HTML for notebooks, when they are first used."""

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
        modules: The module of each name, relative to the package.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{modules[name]}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            message = f"{package}.{name} needs torch, which is not installed here: pip install torch"
            raise ImportError(message, name="torch") from None
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute, lambda: list(modules), list(modules)


def notebook_html(function: str, *arguments: Any) -> str | None:
    """Return what a function of ``dbloader.viewing.notebook`` draws; None if a notebook must show the plain repr.

    Records, stores and datasets find the viewer only here, by name, because all of them are below it.
    """
    html: str | None = getattr(import_module("dbloader.viewing.notebook"), function)(*arguments)
    return html
