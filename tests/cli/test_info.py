"""`dbloader info` prints what is in a store."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from dbloader import ImageFormat, Record, convert, open_store
from tests.support.images import plant_kinds, plant_photos
from tests.support.shell import Shell
from tests.support.stores import store_records


def test_info_shows_what_is_in_a_store(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    plant_kinds(root, "text", "no end marker", "png")
    plant_photos(root, 3, ("owl",), width=500)
    report = convert(root, place, images=ImageFormat(max_side=100))
    outcome = shell("info", place)
    assert (outcome.status, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0] == f"{place}: dbloader store, format version 1"
    rows = dict(re.findall(r"^  (\w+) +(.*)$", outcome.stdout, re.MULTILINE))
    assert rows["records"] == "18"
    assert re.fullmatch(r"[\d.]+ kB \(17 JPEG, 1 PNG\)", rows["images"])
    assert rows["depths"] == "18 8-bit"
    assert rows["width"] == "24 to 100 pixels"
    assert rows["height"] == "6 to 30 pixels"
    convert(plant_photos(tmp_path / "alike", 2), place, overwrite=True)
    alike = dict(re.findall(r"^  (\w+) +(.*)$", shell("info", place).stdout, re.MULTILINE))
    assert (alike["width"], alike["height"]) == ("40 pixels", "30 pixels")
    assert sorted(rows["conversion"].split(", ")) == ["1 rejected", "1 repaired", "3 resized"]
    assert rows["source"] == str(root)
    assert rows["digest"] == report.digest
    assert rows["classes"] == "3, with 3 to 8 records"
    bars = [line.split() for line in lines if "█" in line]
    assert bars == [["cat", "8", "█" * 40], ["dog", "7", "█" * 35], ["owl", "3", "█" * 15]]


def test_info_shows_fields_and_labels_of_a_listing(shell: Shell, root: Path, place: Path, tmp_path: Path) -> None:
    listing = tmp_path / "all.csv"
    listing.write_text("path,label,caption\ncat/0000.jpg,7,one\ndog/0001.jpg,,two\ncat/0002.jpg,-3,three\n")
    convert(root, place, listing=listing)
    rows = dict(re.findall(r"^  (\w+) +(.*)$", shell("info", place).stdout, re.MULTILINE))
    assert rows["fields"] == "caption (3)"
    assert rows["labelled"] == "2"
    assert rows["source"] == str(listing)
    assert rows["labels"] == "2, with 1 record each"
    assert "    -3  1  ████" in shell("info", place).stdout


def test_info_omits_labels_images_and_sizes_that_a_store_lacks(shell: Shell, place: Path) -> None:
    store_records(place, [Record(fields={"x": 1})])
    outcome = shell("info", place)
    assert outcome.status == 0
    rows = dict(re.findall(r"^  (\w+) +(.*)$", outcome.stdout, re.MULTILINE))
    assert rows.keys() == {"records", "images", "fields", "created", "digest", "labelled"}


def test_info_shows_twenty_classes_and_json_shows_all(shell: Shell, tmp_path: Path, place: Path) -> None:
    names = tuple(f"{number:02} {'x' * number}" for number in range(35))
    convert(plant_photos(tmp_path / "many", 40, names), place)
    outcome = shell("info", place)
    assert sum("█" in line for line in outcome.stdout.splitlines()) == 20
    assert outcome.stdout.endswith("    and 15 more (--json gives all)\n")
    assert max(map(len, outcome.stdout.splitlines()[-21:])) < 100
    assert json.loads(shell("info", place, "--json").stdout)["classes"] == [*names]
    long = convert(plant_photos(tmp_path / "long", 2, ("y" * 60,)), tmp_path / "long.lmdb")
    assert f"    {'y' * 29}…  2  " in shell("info", long.place).stdout


@pytest.mark.slow
def test_info_counts_more_than_65536_labels(shell: Shell, place: Path) -> None:
    store_records(place, (Record(label=number) for number in range(65_537)))
    assert "  labels      more than 65,536 different labels\n" in shell("info", place).stdout


def test_json_is_the_manifest(shell: Shell, store: Path) -> None:
    outcome = shell("info", store, "--json")
    with open_store(store) as opened:
        manifest = json.loads(json.dumps(dataclasses.asdict(opened.manifest)))
    assert json.loads(outcome.stdout) == {"place": str(store), **manifest}


def test_report_is_printed_as_json_lines(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "text", "no end marker", "half")
    report = convert(root, place)
    assert shell("info", place, "--report").stdout == Path(report.report_file).read_text()
    assert len(Path(report.report_file).read_text().splitlines()) == 3
