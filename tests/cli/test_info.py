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
    assert lines[-3:] == ["    8  cat", "    7  dog", "    3  owl"]


def test_info_omits_labels_images_and_sizes_that_a_store_lacks(shell: Shell, place: Path) -> None:
    store_records(place, [Record(fields={"x": 1})])
    outcome = shell("info", place)
    assert outcome.status == 0
    rows = dict(re.findall(r"^  (\w+) +(.*)$", outcome.stdout, re.MULTILINE))
    assert rows.keys() == {"records", "images", "fields", "created", "digest", "labelled"}


def test_info_says_that_an_older_store_has_no_record_of_what_convert_understood(shell: Shell, place: Path) -> None:
    store_records(place, [Record(fields={"x": 1})], source={"path": "/images"})
    assert "  understood  not recorded, see verify --against" in shell("info", place).stdout.splitlines()


def test_info_shows_twenty_classes_and_json_shows_all(shell: Shell, tmp_path: Path, place: Path) -> None:
    names = tuple(f"{number:02}" for number in range(35))
    convert(plant_photos(tmp_path / "many", 40, names), place)
    lines = shell("info", place).stdout.splitlines()
    assert (lines[-21], lines[-2:]) == ("    2  00", ["    1  19", "    and 15 more (--json gives all)"])
    assert json.loads(shell("info", place, "--json").stdout)["classes"] == [*names]


@pytest.mark.slow
def test_info_counts_more_than_65536_labels(shell: Shell, place: Path) -> None:
    store_records(place, (Record(label=number) for number in range(65_537)))
    assert "  labels      more than 65,536 different labels\n" in shell("info", place).stdout


def test_info_json_is_the_manifest(shell: Shell, store: Path) -> None:
    outcome = shell("info", store, "--json")
    with open_store(store) as opened:
        manifest = json.loads(json.dumps(dataclasses.asdict(opened.manifest)))
    assert json.loads(outcome.stdout) == {"place": str(store), **manifest}


def test_info_prints_the_report_as_json_lines(shell: Shell, root: Path, place: Path) -> None:
    plant_kinds(root, "text", "no end marker", "half")
    report = convert(root, place)
    assert shell("info", place, "--report").stdout == Path(report.report_file).read_text()
    assert len(Path(report.report_file).read_text().splitlines()) == 3
