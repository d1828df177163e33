"""The documentation's code blocks, links and generated page are right, and the examples in --help run.

A block of ```python or ```bash runs if the comment ``<!-- run -->`` is directly above the block. The block must exit
with 0, or with 1 below ``<!-- run: exit 1 -->``. All blocks of a page run in order, in one folder. The folder contains
``imagefolder/``, with 40 JPEGs in the classes ``cat`` and ``dog``, one of them damaged, and ``coco/``, with three JPEGs
and their boxes in the formats of COCO, VOC and YOLO. A test server replaces ``mongodb://server/images``, and has a
collection ``old`` of image files. Python blocks that follow each other run in one process.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pymongo
import pytest

from dbloader import convert
from dbloader.cli import group
from dbloader.ext.caching.care import fill_cache
from dbloader.ext.parts.part import convert_part
from dbloader.stores.mongo.uri import parse
from tests.support.children import run_program, run_script
from tests.support.images import photo, plant, plant_coco, plant_photos, subcommands
from tests.support.parts import plan_conversion
from tests.support.shell import Shell
from tests.support.viewer import browser, viewer

HERE = Path(__file__).resolve().parents[2]
OUTSIDE = [
    HERE / "README.md",
    HERE / "CONTRIBUTING.md",
    HERE / "scripts" / "bench" / "README.md",
    HERE / "scripts" / "bench" / "figures.md",
]
PAGES = [*OUTSIDE, *sorted((HERE / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent
WAIT_S = 100

_FENCE = re.compile(
    r"^(?P<mark><!-- run(?:: exit (?P<status>\d))? -->\n)?```(?P<language>[a-z]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!https?://|mailto:)(?P<path>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")


class Block(NamedTuple):
    """A block of code, and the line on which it begins."""

    line: int
    language: str
    code: str
    status: int


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that are to run."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        if match["mark"]:
            yield Block(
                text.count("\n", 0, match.start("code")) + 1,
                match["language"],
                match["code"],
                int(match["status"] or 0),
            )


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def name(page: Path) -> str:
    return str(page.relative_to(HERE))


def make_imagefolder(folder: Path) -> Path:
    for number in range(40):
        plant(folder, {f"{('cat', 'dog')[number % 2]}/{number:03}.jpg": photo(number, 64, 48)})
    damaged = folder / "dog" / "039.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-300])
    return folder


def run(language: str, code: str, folder: Path) -> tuple[int, str]:
    """Run a block, and return its exit status and what it printed."""
    if language == "python":
        script = folder / "block.py"
        script.write_text(code, encoding="utf-8")
        return run_script(script, folder=folder)
    line = ["bash", "-euo", "pipefail", "-c", code]
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if [*blocks(page)]], ids=name)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path, mongo_uri: str) -> None:
    make_imagefolder(tmp_path / "imagefolder")
    plant_coco(tmp_path / "coco")
    (tmp_path / "listing.json").write_text(json.dumps({"path_list": ["cat/000.jpg"], "label_list": [0]}))
    fill_collection(f"{mongo_uri}.old", tmp_path / "imagefolder")
    for (language, expected), group_of in itertools.groupby(
        blocks(page), key=lambda block: (block.language, block.status)
    ):
        some = [*group_of]
        code = "\n".join(block.code for block in some).replace("mongodb://server/images.", f"{mongo_uri}.")
        status, printed = run(language, code, tmp_path)
        lines = ", ".join(str(block.line) for block in some)
        assert status == expected, f"{name(page)}, line {lines}:\n{code}\n{printed}"
        assert "Traceback" not in printed


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_marked_blocks_are_python_or_bash(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", "bash"}
    # A mark that is not directly above its block has no effect.
    assert page.read_text(encoding="utf-8").count("<!-- run") == len([*blocks(page)])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_targets_of_all_links_on_a_page_exist(page: Path) -> None:
    for link in _LINK.finditer(prose(page)):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), f"{name(page)} links to {link['path']}, which is not there"
        if link["heading"]:
            assert link["heading"] in headings(target), f"{name(page)} links to {link['path']}#{link['heading']}"


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a page."""
    found = re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_readme_leads_to_every_page() -> None:
    found, waiting = set(), [HERE / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in found and page.suffix == ".md":
            found.add(page)
            waiting += [(page.parent / link["path"]).resolve() for link in _LINK.finditer(prose(page)) if link["path"]]
    assert {page for page in PAGES if page.parent == HERE / "docs"} <= found


@pytest.mark.slow
def test_generated_page_of_commands_is_up_to_date() -> None:
    environment = {**os.environ, "COLUMNS": "40", "LANG": "C"}
    page, _ = run_program(sys.executable, HERE / "scripts" / "parts" / "cli_page.py", env=environment)
    assert (HERE / "docs" / "cli.md").read_text(encoding="utf-8") == page, "out of date: run scripts/docs"


# The examples that end the help of each command


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


def examples(command: click.Command) -> list[str]:
    return re.findall(r"^ +(dbloader .*)$", command.epilog or "", re.MULTILINE)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that contains the files and stores that the examples name."""
    monkeypatch.chdir(tmp_path)
    make_imagefolder(tmp_path / "imagefolder")
    plant_photos(tmp_path / "imagenet" / "train", 64, width=400, height=300)  # one for each shard of the examples
    plant_photos(tmp_path / "photos", 2)
    plant_photos(tmp_path / "new-images", 2)
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    (tmp_path / "shards").mkdir()
    for number in range(147):
        with tarfile.open(tmp_path / "shards" / f"train-{number:03}.tar", "w") as tar:
            tar.add("photos/cat/0000.jpg", f"{number:06}.jpg")
            label = tarfile.TarInfo(f"{number:06}.cls")
            label.size = 1
            tar.addfile(label, io.BytesIO(b"3"))
    (tmp_path / "captions.csv").write_text("path,label,caption\ncat/0000.jpg,cat,a cat\n")
    plant(tmp_path / "scenes", {f"{name}.jpg": photo(0, 64, 48) for name in ("0", "mask", "depth")})
    (tmp_path / "scenes.csv").write_text("path,mask,depth,label\n0.jpg,mask.jpg,depth.jpg,cat\n")
    (tmp_path / "bad.txt").write_text("cat/000.jpg\n")
    (tmp_path / "labels.csv").write_text("name,label\ncat/000.jpg,dog\n")
    (tmp_path / "train.lmdb.marks.jsonl").write_text('{"index": 0, "name": "cat/000.jpg", "drop": true}\n')
    (tmp_path / "predictions.csv").write_text("name,prediction,loss\ncat/000.jpg,dog,0.5\n")
    convert("photos", "second.lmdb")  # to be merged with another store
    (tmp_path / "listing.json").write_text(json.dumps({"path_list": ["cat/0000.jpg"], "label_list": [0]}))
    plant_coco(tmp_path / "coco")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", [group, *subcommands().values()], ids=lambda command: command.name)
def test_examples_of_a_command_run(command: click.Command, shop: Path, mongo_uri: str, shell: Shell) -> None:
    lines = [line.replace("mongodb://server/images.", f"{mongo_uri}.") for line in examples(command)]
    assert lines
    fill_collection(f"{mongo_uri}.old", shop / "photos")
    for line in lines:
        before_pipe, _, jq = line.partition(" | jq -r .")
        _, *words = shlex.split(before_pipe)
        if words[0] in ("convert", "plan"):
            remove(shop / words[2])  # so --resume and the other examples start from nothing
            if "--append" in words:
                convert("imagefolder", words[2], shards=2)
        elif words[0] in ("part", "parts", "publish"):
            remove(shop / words[1])
            plan_conversion("shards", words[1], 18)
            for part in range(18) if words[0] != "part" else ():
                convert_part(words[1], part)
        elif words[0] == "cache":
            if not (shop / words[1]).exists():
                convert("imagefolder", "train.lmdb", overwrite=True)
                fill_cache("train.lmdb", words[1])
        elif words[1] == "boxes.lmdb":
            plant_coco(shop / "coco")
            convert("coco/train2017", "boxes.lmdb", listing="coco/annotations/instances_train2017.json", overwrite=True)
        else:
            convert("imagefolder", words[1], overwrite=True)
            if words[0] in ("duplicates", "view") and words[2:] and not words[2].startswith("--"):
                convert("imagefolder", words[2], overwrite=True)
            if words[2:3] == ["--against"] and words[3].startswith("mongodb://"):
                convert("imagefolder", words[3], overwrite=True)
        if words[0] == "view" and "--html" not in words:
            with viewer(*words[1:]) as shown, browser(shown.link) as client:
                assert client.get("/").status_code == 200
            continue
        # use a new process, because workers forked from a test inherit the test's signal handlers
        if words[0] == "bench":
            program = [sys.executable, "-m", "dbloader", *words, "--seconds", "0.01", "--rounds", "1"]
            stdout, stderr = run_program(*program)
            assert stderr == ""
            assert json.loads(stdout)[jq] if jq else stdout
            continue
        done = shell(*words)
        rejected = 1 if words[:2] == ["convert", "imagefolder/"] else 0
        # the status depends on the machine that runs the tests
        problem = 1 if words[0] == "doctor" and "problem" in done.stdout else 0
        leaks = 1 if words[:3] == ["duplicates", "val.lmdb", "train.lmdb"] else 0
        assert done.status == (rejected or problem or leaks), f"{line}\n{done.stdout}{done.stderr}"
        assert json.loads(done.stdout)[jq] if jq else done.stdout
        begun = "Warning: there was nothing to resume, so this conversion began from the start\n"
        fewer = "Warning: shards (--shards) is 512, but there will be only 64, one for each file\n"
        assert done.stderr == (begun if "--resume" in words else fewer if "512" in words else "")


def remove(place: Path) -> None:
    """Remove a store of any kind and its plan."""
    place.unlink() if place.is_file() else shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(f"{place}.partial", ignore_errors=True)


def fill_collection(uri: str, folder: Path) -> None:
    """Make a collection as other programs do, with a name and a file in each document."""
    at = parse(uri)
    client: pymongo.MongoClient[Any]
    with pymongo.MongoClient(uri) as client:
        collection: Any = client[at.database][at.collection]
        collection.create_index("img_name")
        names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.jpg"))]
        collection.insert_many([{"img_name": name, "bson_img": (folder / name).read_bytes()} for name in names])


def test_python_in_the_help_runs(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, code = (group.epilog or "").partition("Then in Python:\n")
    convert(shop / "photos", "train.lmdb")
    lines = [*(line.strip() for line in code.splitlines()), "print(len(train), train.classes)", "train.close()"]
    exec("\n".join(lines), {})
    assert capsys.readouterr().out == "2 ['cat', 'dog']\n"
