"""Import each class or function of ``dbloader.ext`` at its first use. dbloader also works without ``dbloader.ext``."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dbloader.errors import DBLoaderError

# Maps each name to the module that defines it, relative to dbloader.ext.
EXTENSIONS = {
    "CachedStore": "caching.store",
    "CollectionDataset": "datasets.collection",
    "EvenBatchFetcher": "batches.even",
    "MixtureBatchFetcher": "mixing.batches",
    "Reading": "sources.options",
    "ReplacingBatchFetcher": "batches.replacing",
    "Skip": "batches.replacing",
    "add_source_options": "cli.source_options",
    "convert_in_parts": "parts.run",
    "find_matching": "queries.select",
    "given_classes": "sources.classes",
    "make_plan": "fusing.plan",
    "open_against": "comparing.compare",
    "open_with": "sources.open",
    "place_boxes": "sources.boxes",
    "pop_listing": "cli.source_options",
    "print_dry_run": "cli.dry_run",
    "read_remote_table": "publishing.objects",
    "record_html": "viewing.notebook",
    "records_html": "viewing.notebook",
    "relabeled": "sources.boxes",
    "store_html": "viewing.notebook",
    "with_head": "fusing.plan",
}

# Maps each command to its module, relative to dbloader. ``dbloader --help`` shows the commands in this order.
COMMANDS = {
    "convert": "cli.convert", "info": "cli.info", "ls": "ext.cli.ls", "show": "ext.cli.show", "view": "ext.cli.view",
    "verify": "cli.verify", "duplicates": "ext.cli.duplicates", "copy": "ext.cli.copy", "export": "ext.cli.copy",
    "cache": "ext.cli.cache", "bench": "ext.cli.measure", "doctor": "ext.cli.measure", "plan": "ext.cli.parts",
    "part": "ext.cli.parts", "parts": "ext.cli.parts", "publish": "ext.cli.parts",
}  # fmt: skip

MISSING = "dbloader.ext, which is not installed here: install dbloader again"


@cache
def has_extensions() -> bool:
    """Return whether ``dbloader.ext`` is installed."""
    return find_spec("dbloader.ext") is not None


def installed_commands() -> list[str]:
    """Return the names of the commands whose modules are installed."""
    return [name for name, module in COMMANDS.items() if has_extensions() or not module.startswith("ext.")]


def extension(name: str) -> Any:
    """Return a class or function of ``dbloader.ext``. Raise DBLoaderError if ``dbloader.ext`` is not installed."""
    if not has_extensions():
        raise DBLoaderError(f"{name} is in {MISSING}")
    return getattr(import_module(f"dbloader.ext.{EXTENSIONS[name]}"), name)


def html(name: str, *arguments: Any) -> str | None:
    """Call a function of ``dbloader.ext`` that returns HTML for a notebook. Without ``dbloader.ext``, return None."""
    shown: str | None = extension(name)(*arguments) if has_extensions() else None
    return shown
