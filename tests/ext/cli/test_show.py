"""`dbloader show` prints one record of a store."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from dbloader import ImageFormat, Record, convert, open_store
from tests.support import jpegs
from tests.support.images import encoded, photo, plant
from tests.support.shell import Shell, check_error
from tests.support.stores import store_records


def facts(shell: Shell, *arguments: object) -> Any:
    outcome = shell("show", *arguments, "--json")
    assert (outcome.status, outcome.stderr) == (0, "")
    return json.loads(outcome.stdout)


def store_of(place: Path, *records: Record) -> Path:
    store_records(place, records, classes=("cat", "dog"))
    return place


def test_record_is_shown_by_index_or_name(shell: Shell, store: Path) -> None:
    outcome = shell("show", store, 7)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert shell("show", store, "dog/0003.jpg").stdout == outcome.stdout
    rows = dict(re.findall(r"^(.*?)  +(.*)$", outcome.stdout, re.MULTILINE))
    with open_store(store) as opened:
        nbytes = len(opened[7].image or b"")
    assert rows == {
        "place": str(store), "index": "7", "name": "dog/0003.jpg", "label": "1", "class": "dog", "format": "JPEG",
        "width": "40", "height": "30", "bytes": str(nbytes), "jpeg structure": "complete",
        "jpeg process": "baseline, 8 bits", "jpeg subsampling": "4:2:0", "jpeg restart_interval": "0",
    }  # fmt: skip
    assert shell("show", store, -5).stdout == outcome.stdout
    check_error(shell("show", store, -13), "no record -13 in .*, which has 12 records, numbered from 0")
    check_error(shell("show", store, "7", "--jsn"), r"unexpected extra argument \('?--jsn'?\)")
    check_error(shell("show", store, "12"), "no record 12 in .*, which has 12 records, numbered from 0")
    check_error(shell("show", store, "owl.jpg"), "no record of .* is named 'owl.jpg'")


def test_fields_of_all_kinds_are_shown_as_json(shell: Shell, place: Path) -> None:
    fields = {
        "boxes": np.array([[1, 2, 3, 4.5]], np.float32), "none": np.zeros((0, 4)), "nan": float("nan"), "raw": b"123",
        "mask": np.zeros((30, 40), np.uint8), "list": [1, {"a": (True, None)}, np.array([float("inf")])],
        "long": "x" * 300, "one": np.array(5.5),
    }  # fmt: skip
    store_of(place, Record(label=1, fields=fields))
    shown = facts(shell, place, 0)
    assert shown["fields"] == {
        "boxes": [[1, 2, 3, 4.5]], "none": [], "nan": "nan", "raw": "3 bytes", "mask": "uint8 array of shape (30, 40)",
        "list": [1, {"a": [True, None]}, ["inf"]], "long": "x" * 300,
        "one": 5.5,
    }  # fmt: skip
    assert (shown["class"], shown["name"], shown["bytes"], shown["jpeg"]) == ("dog", None, None, {})
    assert f"fields long   {'x' * 99}…\n" in shell("show", place, 0).stdout


def test_exif_is_shown_by_name(shell: Shell, place: Path) -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "Came\x1bra", 6
    exif.get_ifd(0x8769).update({0x829A: IFDRational(1, 250), 0x9286: b"\0\1"})
    store_of(place, Record(image=encoded(jpegs.draw(24, 18), "JPEG", exif=exif)))
    shown = facts(shell, place, 0)
    assert shown["exif"] == {"Make": "Came\x1bra", "Orientation": 6, "ExposureTime": 0.004, "UserComment": "2 bytes"}
    assert "\nexif Make              Came\\x1bra\n" in shell("show", place, 0).stdout


def test_show_describes_tiled_gray_progressive_and_damaged_images(shell: Shell, tmp_path: Path, place: Path) -> None:
    root = plant(tmp_path / "images", {"cat/0.jpg": photo(1, 128, 64)})
    convert(root, tmp_path / "tiled.lmdb", images=ImageFormat(tile=True, quality=90))
    tiles = {"tile_width": 32, "tile_height": 16, "across": 4, "down": 4}
    assert facts(shell, tmp_path / "tiled.lmdb", 0)["jpeg"]["tiles"] == tiles
    gray = jpegs.encode(jpegs.draw(24, 18, "L"))
    progressive = photo(progressive=True, subsampling=0)
    images = (gray, gray[:-2], photo()[:100], b"GIF8", progressive)
    store_of(place, *(Record(image=image) for image in images))
    assert facts(shell, place, 0)["jpeg"]["subsampling"] == "gray"
    assert facts(shell, place, 1)["jpeg"]["structure"] == "the end marker is missing"
    cut = facts(shell, place, 2)
    assert "is cut short" in cut["jpeg"]["structure"]
    assert "error" in cut["exif"]
    assert facts(shell, place, 3)["jpeg"] == {}
    whole = facts(shell, place, 4)["jpeg"]
    assert {**whole, "process": "progressive, 8 bits", "subsampling": "4:4:4", "structure": "complete"} == whole


def test_show_writes_the_stored_image_and_replaces_no_file(shell: Shell, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jpg"
    assert shell("show", store, 3, "--output", file).status == 0
    with open_store(store) as opened:
        assert file.read_bytes() == opened[3].image
    check_error(shell("show", store, 4, "--output", file), "out.jpg exists already: choose another FILE")
    with open_store(store) as opened:
        assert file.read_bytes() == opened[3].image
    pixels = store_of(tmp_path / "raw.lmdb", Record(image=np.zeros((4, 4, 3), np.uint8)))
    check_error(shell("show", pixels, 0, "--output", tmp_path / "no"), "has no image file to write")
    assert not (tmp_path / "no").exists()
