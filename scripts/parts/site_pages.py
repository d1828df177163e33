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

import dbloader

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
# The pages of the API: the heading, a module, and those of its names that the page has; "*" are all. "LMDBDataset.*"
# are the members of a class, which then has two pages.
API = {
    "lmdbdataset": ("The dataset of an LMDB file", "dbloader", "LMDBDataset"),
    "lmdbdataset-members": ("What an LMDBDataset has", "dbloader", "LMDBDataset.*"),
    "create_loader": ("From a dataset to batches on the device", "dbloader", "create_loader Collate"),
    "prefetchloader": ("Batches of your own DataLoader, on the device", "dbloader", "PrefetchLoader Skip"),
    "datasets": ("Other datasets, and stores without one", "dbloader", "MongoDataset mix open_store Record"),
    "convert": ("From a folder to a store", "dbloader", "convert"),
    "write": ("From a program to a store", "dbloader", "write_store ImageFormat Listing"),
    "copy": ("From a store to another", "dbloader", "copy_store export_store"),
    "check": ("Check a store, and look at it", "dbloader", "verify_store find_duplicates view"),
    "decoders": ("For `decode=` of a dataset", "dbloader.decoding", "Decoder DecodeTensor as_tv_tensors"),
    "crops": ("What a Decoder keeps", "dbloader.decoding", "RandomResizedCrop ResizeCenterCrop RandomCrop"),
    "images": (
        "Several crops, whole images",
        "dbloader.decoding",
        "MultiCrop Crop decode_pil decode_gray decode_unchanged",
    ),
    "device": ("For `preparation=` of a loader", "dbloader.device", "*"),
    "resumable": ("A sampler whose order can be resumed", "dbloader.sampling", "ResumableSampler"),
    "samplers": (
        "Other samplers",
        "dbloader.sampling",
        "ShuffleSampler WeightedSampler ClassBalancedSampler OrderedSampler SampleRNG",
    ),
    "blocks": (
        "Samplers for large stores",
        "dbloader.sampling",
        "BlockShuffleSampler SeededBatchSampler SeededIndices",
    ),
    "tiled": ("Tiled JPEGs", "dbloader.images.tiled", "*"),
    "compat": ("For code that was written for other recipes", "dbloader.loading.compat", "*"),
    "errors": ("All exceptions", "dbloader.errors", "*"),
    "report": ("What a conversion returns", "dbloader.conversion.report", "Report Progress"),
    "stats": ("What a loader measures", "dbloader.loading.stats", "Stats SourceStats"),
    "manifest": ("What a store says about itself", "dbloader.records.manifest", "Manifest"),
    "mixture": ("What `mix` returns", "dbloader.ext.mixing.mixture", "Mixture"),
    "store": ("What `open_store` returns", "dbloader.stores.base", "Store"),
    "writer": ("What `write_store` returns", "dbloader.stores.writer", "Writer"),
}
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
    """Return the pages of the API, on which mkdocstrings shows the docstrings whole."""
    pages = {}
    seen: list[object] = []
    apart = {names.removesuffix(".*") for _, _, names in API.values() if names.endswith(".*")}
    for page, (about, module, names) in API.items():
        exports = import_module(module)
        own = [name for name, value in vars(exports).items() if getattr(value, "__module__", None) == module]
        shown = sorted(getattr(exports, "__all__", own)) if names == "*" else names.split()
        blocks = []
        for name in shown:
            home = "dbloader" if hasattr(dbloader, name) else module
            value = getattr(exports, name.removesuffix(".*"))
            if name.endswith(".*"):
                blocks += [block(f"{module}.{name[:-1]}{member}", [], full=False) for member in members(value, seen)]
            else:
                is_whole = isinstance(value, type) and name not in apart
                blocks.append(block(f"{home}.{name}", members(value, seen) if is_whole else []))
        pages[f"api/{page}.md"] = "\n".join([f"# {about}", "", *blocks])
    return pages


def block(path: str, members: list[str], full: bool = True) -> str:
    """Return the lines that make mkdocstrings show a name and, of a class, these members."""
    options = [f"members: [{', '.join(members)}]"] if members else ["members: false", "inherited_members: false"]
    options += [] if full else ["show_root_full_path: false", "heading_level: 3"]
    return "\n".join([f"::: {path}", "    options:", *(f"      {option}" for option in options)]) + "\n"


def members(value: type, seen: list[object]) -> list[str]:
    """Return the documented methods and properties of a class, without the inherited ones that ``seen`` has."""
    if issubclass(value, BaseException):
        return []
    names = []
    for name in sorted(dir(value)):
        owner = next(base for base in value.__mro__ if name in vars(base) or base is object)
        member = inspect.getattr_static(value, name)
        elsewhere = any(member is other for other in seen) or not owner.__module__.startswith("dbloader")
        if name.startswith("_") or elsewhere or not inspect.getdoc(getattr(value, name)):
            continue
        if callable(member) or isinstance(member, (classmethod, staticmethod, property)):
            names.append(name)
            seen.append(member)
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
