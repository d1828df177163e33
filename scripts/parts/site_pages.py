"""Write the pages of which mkdocs.yml makes the site: docs/, the pages outside it, and pages of the API.

    python scripts/parts/site_pages.py FOLDER [PICTURES]

Pages stay readable where they are, so the links between them are changed here: a page that lies elsewhere in the site
gets links that fit its new place. A link to a file that the site lacks is an error.

A line ``<!-- picture NAME: WORDS -->`` becomes the screenshot NAME.webp in the folder PICTURES, which
scripts/screenshots fills; without it, the line stays a comment.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import api_page

HERE = Path(__file__).resolve().parents[2]
DOCS = HERE / "docs"
# Pages outside docs/, and where the site has them.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "scripts/bench/README.md": "bench.md",
    "scripts/bench/figures.md": "figures.md",
    "scripts/bench/training.svg": "training.svg",
}
_CODE_OR_LINK = re.compile(r"^```.*?^```$|(?<=\]\()(?P<path>[^)#\s:]+)(?=[)#])", re.MULTILINE | re.DOTALL)


_PICTURE = re.compile(r"^<!-- picture (?P<name>[a-z-]+): (?P<words>.+) -->$", re.MULTILINE)


def places() -> dict[Path, Path]:
    """Return the files of the site, each with its place there."""
    found = {path: path.relative_to(DOCS) for path in sorted(DOCS.rglob("*")) if path.is_file()}
    return {path: place for path, place in found.items() if "__pycache__" not in place.parts} | {
        HERE / path: Path(place) for path, place in ELSEWHERE.items() if (HERE / path).exists()
    }


def with_pictures(text: str, pictures: Path | None) -> str:
    """Return a page with the screenshots that it names, as far as there are any."""

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
    for module, text in api_page.MODULES.items():
        names = api_page.vars_of(module)
        if module != "dbloader":
            names = {name: value for name, value in names.items() if name not in api_page.vars_of("dbloader")}
        blocks = [block(f"{module}.{name}", value) for name, value in names.items()]
        pages[f"api/{module}.md"] = "\n".join([f"# {module}", "", text, "", *blocks])
    blocks = []
    for path in api_page.RETURNED:
        module, _, name = path.rpartition(".")
        blocks.append(block(path, getattr(import_module(module), name)))
    text = "Functions and methods return these. A program does not make them."
    pages["api/returned.md"] = "\n".join(["# Returned objects", "", text, "", *blocks])
    return pages


def block(path: str, value: object) -> str:
    """Return what makes mkdocstrings show a name, and of a class the members that docs/api.md names."""
    lines = [f"::: {path}"]
    if isinstance(value, type):
        members = api_page.members(value, api_page.public_classes())
        lines += ["    options:", f"      members: [{', '.join(members)}]" if members else "      members: false"]
    return "\n".join(lines) + "\n"


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
