"""Names of what stands around the core, in ``dbloader.ext``. No other module of the core names it.

Each name is imported at its first use, so the core works without these modules, and imports none of them needlessly.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

# The module of each name, below dbloader.ext.
EXTENSIONS = {
    "CachedStore": "caching.store",
    "CollectionDataset": "datasets.collection",
    "MixtureBatchFetcher": "mixing.batches",
    "ReplacingBatchFetcher": "batches.replacing",
    "Skip": "batches.replacing",
    "compare_files": "comparing.compare",
    "compare_stores": "comparing.compare",
    "convert_in_parts": "parts.run",
    "find_matching": "queries.select",
    "open_other": "sources.recognize",
    "read_remote_table": "publishing.objects",
    "record_html": "viewing.notebook",
    "records_html": "viewing.notebook",
    "store_html": "viewing.notebook",
}

# The module of each command of the command line, below dbloader, in the order of ``dbloader --help``.
COMMANDS = {
    "convert": "cli.convert", "info": "cli.show", "ls": "ext.cli.ls", "show": "cli.show", "view": "ext.cli.view",
    "verify": "cli.verify", "duplicates": "ext.cli.duplicates", "copy": "ext.cli.copy", "export": "ext.cli.copy",
    "cache": "ext.cli.cache", "bench": "ext.cli.measure", "doctor": "ext.cli.measure", "plan": "ext.cli.parts",
    "part": "ext.cli.parts", "parts": "ext.cli.parts", "publish": "ext.cli.parts",
}  # fmt: skip


def has_extensions() -> bool:
    """Return whether what stands around the core is installed."""
    return find_spec("dbloader.ext") is not None


def extension(name: str) -> Any:
    """Return a class or function that stands around the core."""
    return getattr(import_module(f"dbloader.ext.{EXTENSIONS[name]}"), name)
