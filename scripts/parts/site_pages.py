"""Write the pages of the site for mkdocs.yml: docs/, the pages outside it, and the pages of the Python API.

    python scripts/parts/site_pages.py FOLDER [PICTURES]

The links between pages work in the repository. Some pages have another place in the site, so this program changes their
links to fit. A link to a file that the site lacks is an error.

A line ``<!-- picture NAME: WORDS -->`` becomes the screenshot NAME.webp in the folder PICTURES, which
scripts/screenshots fills. Without the screenshot, the line stays a comment.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
DOCS = HERE / "docs"
# Pages outside docs/, and their places in the site.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "scripts/bench/README.md": "bench.md",
    "scripts/bench/figures.md": "figures.md",
}
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
# Functions and methods of these modules return objects of these classes; a program does not make them.
RETURNED = (
    "dbloader.conversion.report.Report",
    "dbloader.conversion.report.Progress",
    "dbloader.records.manifest.Manifest",
    "dbloader.loading.stats.Stats",
    "dbloader.loading.stats.SourceStats",
    "dbloader.ext.mixing.mixture.Mixture",
    "dbloader.stores.base.Store",
    "dbloader.stores.writer.Writer",
)
_CODE_OR_LINK = re.compile(r"^```.*?^```$|(?<=\]\()(?P<path>[^)#\s:]+)(?=[)#])", re.MULTILINE | re.DOTALL)


_PICTURE = re.compile(r"^<!-- picture (?P<name>[a-z-]+): (?P<words>.+) -->$", re.MULTILINE)


def places() -> dict[Path, Path]:
    """Return the files of the site, each with its place in the site."""
    found = {path: path.relative_to(DOCS) for path in sorted(DOCS.rglob("*")) if path.is_file()}
    return {path: place for path, place in found.items() if "__pycache__" not in place.parts} | {
        HERE / path: Path(place) for path, place in ELSEWHERE.items() if (HERE / path).exists()
    }


def with_pictures(text: str, pictures: Path | None) -> str:
    """Return a page with its screenshots, if they exist."""

    def picture(match: re.Match[str]) -> str:
        there = pictures is not None and (pictures / f"{match['name']}.webp").exists()
        return f"![{match['words']}](images/{match['name']}.webp)" if there else match[0]

    return _PICTURE.sub(picture, text)


def moved(text: str, page: Path, places: dict[Path, Path]) -> str:
    """Return a page with the links that fit its place in the site."""

    def link(match: re.Match[str]) -> str:
        if not match["path"]:
            return match[0]
        target = (page.parent / match["path"]).resolve()
        if target in places:
            return os.path.relpath(places[target], places[page].parent)
        raise SystemExit(f"{page.relative_to(HERE)} links to {match['path']}, which the site does not have")

    return _CODE_OR_LINK.sub(link, text)


def api_pages() -> dict[str, str]:
    """Return the pages of the API: for each public module its names, whose docstrings mkdocstrings shows whole."""
    pages = {}
    for module, text in MODULES.items():
        names = names_of(module)
        if module != "dbloader":
            names = {name: value for name, value in names.items() if name not in names_of("dbloader")}
        blocks = [block(f"{module}.{name}", value) for name, value in names.items()]
        pages[f"api/{module}.md"] = "\n".join([f"# {module}", "", text, "", *blocks])
    blocks = []
    for path in RETURNED:
        module, _, name = path.rpartition(".")
        blocks.append(block(path, getattr(import_module(module), name)))
    text = "Functions and methods return these. A program does not make them."
    pages["api/returned.md"] = "\n".join(["# Returned objects", "", text, "", *blocks])
    return pages


def block(path: str, value: object) -> str:
    """Return the lines that make mkdocstrings show a name and, of a class, its own public members."""
    lines = [f"::: {path}"]
    if isinstance(value, type):
        own = members(value)
        lines += ["    options:", f"      members: [{', '.join(own)}]" if own else "      members: false"]
    return "\n".join(lines) + "\n"


def names_of(module: str) -> dict[str, Any]:
    """Return the public names of a module and their values."""
    exports = import_module(module)
    own = [name for name, value in vars(exports).items() if getattr(value, "__module__", None) == module]
    return {name: getattr(exports, name) for name in sorted(getattr(exports, "__all__", own)) if name != "__version__"}


def members(value: type) -> list[str]:
    """Return the documented methods and properties that a class does not inherit from a public or foreign base."""
    if issubclass(value, BaseException):
        return []
    public = {value for module in MODULES for value in names_of(module).values() if isinstance(value, type)}
    names = []
    for name in sorted(dir(value)):
        owner = next(base for base in value.__mro__ if name in vars(base) or base is object)
        member = inspect.getattr_static(value, name)
        inherited = owner is not value and (owner in public or not owner.__module__.startswith("dbloader"))
        if name.startswith("_") or inherited or not inspect.getdoc(getattr(value, name)):
            continue
        if callable(member) or isinstance(member, (classmethod, staticmethod, property)):
            names.append(name)
    return names


def main(site: Path, pictures: Path | None = None) -> None:
    shutil.rmtree(site, ignore_errors=True)
    files = places()
    for path, place in files.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = moved(path.read_text(encoding="utf-8"), path, files)
            (site / place).write_text(with_pictures(text, pictures), encoding="utf-8")
        else:
            shutil.copyfile(path, site / place)
    if pictures is not None:
        shutil.copytree(pictures, site / "images", dirs_exist_ok=True)
    for name, text in api_pages().items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
