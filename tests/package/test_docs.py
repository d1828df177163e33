"""What the documentation shows runs, what it links to is there, and the page of the command line is up to date.

A block of ```python or ```bash directly below the comment ``<!-- run -->`` is run: all of one page in their order, in
one folder, which has an ``imagefolder/`` of 40 JPEGs in the classes ``cat`` and ``dog``, one of them damaged. A page
about MongoDB has a server in the place of ``mongodb://server/images``, with a collection ``old`` of image files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pymongo
import pytest

from dbloader.cli import group
from dbloader.stores.mongo.uri import parse
from tests.support.images import photo, plant, plant_photos, subcommands

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

HERE = Path(__file__).resolve().parents[2]
PAGES = [HERE / "README.md", *sorted((HERE / "docs").rglob("*.md")), HERE / "scripts" / "bench" / "README.md"]
BIN = Path(sys.executable).parent
WAIT_S = 100

_FENCE = re.compile(r"^(?P<mark><!-- run -->\n)?```(?P<language>[a-z]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://|mailto:)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")


class Block(NamedTuple):
    """A block of code and the line it begins on."""

    line: int
    language: str
    code: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that are to run."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        if match["mark"]:
            yield Block(text.count("\n", 0, match.start("code")) + 1, match["language"], match["code"])


def prose(page: Path) -> str:
    """The text of a page without its blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def name(page: Path) -> str:
    return str(page.relative_to(HERE))


def make_imagefolder(folder: Path) -> Path:
    for number in range(40):
        plant(folder, {f"{('cat', 'dog')[number % 2]}/{number:03}.jpg": photo(number, 64, 48)})
    damaged = folder / "dog" / "039.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-300])
    return folder


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def run(block: Block, folder: Path, uri: str) -> subprocess.CompletedProcess[str]:
    code = block.code.replace("mongodb://server/images.", f"{uri}.")
    if block.language == "bash":
        line = ["bash", "-euo", "pipefail", "-c", code]
    else:
        # A file, because workers that are spawned import it.
        script = folder / "block.py"
        script.write_text(code, encoding="utf-8")
        line = [sys.executable, script.name]
    return subprocess.run(
        line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, mongo_uri: str) -> None:
    make_imagefolder(tmp_path / "imagefolder")
    (tmp_path / "listing.json").write_text(json.dumps({"path_list": ["cat/000.jpg"], "label_list": [0]}))
    fill_collection(f"{mongo_uri}.old", tmp_path / "imagefolder")
    for block in blocks(page):
        done = run(block, tmp_path, mongo_uri)
        assert done.returncode == 0, f"{name(page)}, line {block.line}:\n{block.code}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_that_run_are_of_a_language_that_can(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", "bash"}
    # A comment that is not directly above its block would be passed over.
    assert page.read_text(encoding="utf-8").count("<!-- run -->") == len([*blocks(page)])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.finditer(prose(page)):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), f"{name(page)} links to {link['path']}, which is not there"
        if link["heading"]:
            assert link["heading"] in headings(target), f"{name(page)} links to {link['path']}#{link['heading']}"


def headings(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    found = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_every_page_can_be_found_from_the_readme() -> None:
    linked = {(HERE / link["path"]).resolve() for link in _LINK.finditer(prose(HERE / "README.md")) if link["path"]}
    assert {page for page in PAGES if page.parent == HERE / "docs"} <= linked


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    done = subprocess.run(
        [sys.executable, HERE / "scripts" / "parts" / "cli_page.py"],
        env={**os.environ, "COLUMNS": "40", "LANG": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    page = HERE / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == done.stdout, "out of date: run scripts/docs"


# The examples that end the help of each command


def examples(command: click.Command) -> list[str]:
    return re.findall(r"^ +(dbloader .*)$", command.epilog or "", re.MULTILINE)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with what the examples name."""
    make_imagefolder(tmp_path / "imagefolder")
    plant_photos(tmp_path / "imagenet" / "train", 6, width=400, height=300)
    plant_photos(tmp_path / "photos", 2)
    (tmp_path / "captions.csv").write_text("path,label,caption\ncat/0000.jpg,cat,a cat\n")
    (tmp_path / "listing.json").write_text(json.dumps({"path_list": ["cat/0000.jpg"], "label_list": [0]}))
    # jq may not be installed; the examples only ask it for one value.
    jq = tmp_path / "bin" / "jq"
    jq.parent.mkdir()
    jq.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.load(sys.stdin)[sys.argv[2].lstrip('.')])\n")
    jq.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("command", [group, *subcommands().values()], ids=lambda command: command.name)
def test_the_examples_of_a_command_run(command: click.Command, shop: Path, mongo_uri: str) -> None:
    lines = [line.replace("mongodb://server/images.", f"{mongo_uri}.") for line in examples(command)]
    assert lines
    fill_collection(f"{mongo_uri}.old", shop / "photos")
    for line in lines:
        words = shlex.split(line.partition("|")[0])
        if words[1] == "convert":
            (shop / words[3]).unlink(missing_ok=True)  # --resume goes on with what is there, or begins
        else:
            ready = ["dbloader", "convert", "imagefolder/", words[2], "--quiet", "--overwrite"]
            assert shell(ready, shop).returncode == 1
            if words[1] == "bench":  # which takes its time
                line = line.replace(" bench ", " bench --seconds 0.01 --rounds 1 ", 1)
        done = shell(["bash", "-euo", "pipefail", "-c", line], shop)
        rejected = 1 if words[1:3] == ["convert", "imagefolder/"] else 0
        assert done.returncode == rejected, f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout
        begun = "Warning: there was nothing to resume: the conversion began from the start\n"
        assert done.stderr == (begun if "--resume" in words else "")


def fill_collection(uri: str, folder: Path) -> None:
    """Make a collection as other programs have it, of a name and a file in each document."""
    at = parse(uri)
    client: pymongo.MongoClient[Any]
    with pymongo.MongoClient(uri) as client:
        collection: Any = client[at.database][at.collection]
        collection.create_index("img_name")
        names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.jpg"))]
        collection.insert_many([{"img_name": name, "bson_img": (folder / name).read_bytes()} for name in names])


def shell(line: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(BIN), str(folder / "bin"), os.environ["PATH"]])
    executable = shutil.which(line[0], path=path)
    assert executable
    return subprocess.run(
        [executable, *line[1:]],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def test_the_python_in_the_help_runs(shop: Path) -> None:
    _, _, code = (group.epilog or "").partition("In Python:\n")
    assert code
    assert shell(["dbloader", "convert", "photos/", "train.lmdb", "-q"], shop).returncode == 0
    script = "\n".join([*(line.strip() for line in code.splitlines()), "print(len(train), train.classes)"])
    done = shell([sys.executable, "-c", script], shop)
    assert (done.stdout, done.stderr) == ("2 ['cat', 'dog']\n", "")
