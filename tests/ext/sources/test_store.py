"""Conversion checks and changes the files of a store like files of a folder, and keeps everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import ImageFormat, Record, convert, open_store, write_store
from dbloader.errors import OptionError, SourceError, StoreExistsError, StoreNotFoundError
from tests.support.conversion import events, interrupt, records
from tests.support.images import photo, picture, plant, plant_kinds, plant_photos

FIELDS: dict[str, Any] = {
    "caption": "a c\u00e4t",
    "mask": b"\0\1",
    "boxes": np.eye(3, dtype="f4"),
    "more": [{"x": None}],
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of files whose records have everything that a record can contain."""
    files = [
        Record("b/2.jpg", 1, photo(1, 400, 300), 400, 300, "JPEG", fields=FIELDS),
        Record("a/1.png", 0, picture("PNG"), 24, 18, "PNG"),
        Record(None, None, photo(2), 40, 30, "JPEG", resized_from=(80, 60), fields={"tiles": b"of a user"}),
        Record("b/2.jpg", 1, photo(3), 40, 30, "JPEG", damaged="its end is missing"),
    ]
    write_store(files, tmp_path / "a.lmdb", classes=("a", "b", "empty"))
    return tmp_path / "a.lmdb"


def test_conversion_without_options_keeps_all_records(store: Path, tmp_path: Path, mongo_uri: str) -> None:
    with open_store(store) as opened:
        digest = opened.manifest.digest
    for source, place in ((store, tmp_path / "b.lmdb"), (tmp_path / "b.lmdb", mongo_uri), (mongo_uri, tmp_path / "c")):
        report = convert(source, place)
        assert (report.digest, report.files, report.rejected, report.resized, report.damaged) == (digest, 4, 0, 0, 1)
        with open_store(place) as made:
            assert made.manifest.classes == ("a", "b", "empty")
            assert made.verify() == digest


def test_query_selects_the_records_of_a_store(store: Path, tmp_path: Path) -> None:
    with open_store(store) as source:
        wanted, length = [name for name in source.names() if name != "b/2.jpg"], len(source)
    query = "not class:b"
    for shards in (None, 2):
        out = tmp_path / f"some-{shards}.lmdb"
        report = convert(store, out, where=query, shards=shards)
        with open_store(out) as made:
            assert [*made.names()] == wanted
            assert (report.records, made.manifest.source["where"]) == (2, query)
    for number, every in enumerate(("", "index>=0")):  # each finds all records
        assert convert(store, tmp_path / f"all-{number}.lmdb", where=every).records == length
    with pytest.raises(OptionError, match=r"there is nothing to convert: 'name:nobody' finds no record of "):
        convert(store, tmp_path / "none.lmdb", where="name:nobody")
    with pytest.raises(OptionError, match="this store has no field 'size'"):
        convert(store, tmp_path / "none.lmdb", where="size>3")
    plant(tmp_path / "folder", {"cat/1.jpg": photo()})
    with pytest.raises(OptionError, match=r"where \(--where\) selects records of a store, and .*folder is no store"):
        convert(tmp_path / "folder", tmp_path / "none.lmdb", where="width>3")
    assert not [*tmp_path.glob("none*")]


def test_resized_images_keep_their_first_original_size(store: Path, tmp_path: Path) -> None:
    convert(store, tmp_path / "b.lmdb", images=ImageFormat(short_side=100))
    report = convert(tmp_path / "b.lmdb", tmp_path / "c.lmdb", images=ImageFormat(short_side=20))
    first, png, nameless, damaged = records(tmp_path / "c.lmdb")
    assert (first.width, first.height, first.resized_from) == (27, 20, (400, 300))
    assert list(first.fields) == list(FIELDS)
    assert np.array_equal(first.fields["boxes"], FIELDS["boxes"])
    assert (png.name, png.label, png.resized_from) == ("a/1.png", 0, None)
    assert (nameless.name, nameless.label, nameless.resized_from) == (None, None, (80, 60))
    assert nameless.fields == {"tiles": b"of a user"}
    # dbloader never decodes a record that is marked as damaged.
    assert (damaged.image, damaged.damaged, damaged.resized_from) == (photo(3), "its end is missing", None)
    assert (report.resized, report.damaged, report.rejected) == (2, 1, 0)
    assert [event["reason"] for event in events(tmp_path / "c.lmdb")] == ["its end is missing (stored nevertheless)"]


def test_damaged_image_is_rejected_when_pixels_are_stored(store: Path, tmp_path: Path) -> None:
    report = convert(store, tmp_path / "b.lmdb", images=ImageFormat(raw=True), check="none")
    assert (report.records, report.rejected) == (3, 1)
    assert [event["reason"] for event in events(tmp_path / "b.lmdb")] == ["its end is missing"]


def test_files_are_checked_like_files_of_a_folder(tmp_path: Path) -> None:
    plant_kinds(tmp_path / "images", "photo", "half", "text", "no end marker")
    convert(tmp_path / "images", tmp_path / "a.lmdb", check="none")
    checked = convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    folder = convert(tmp_path / "images", tmp_path / "c.lmdb")
    assert (checked.digest, checked.rejected, checked.repaired) == (folder.digest, 2, 1)
    assert events(tmp_path / "b.lmdb") == events(tmp_path / "c.lmdb")


def test_conversion_without_tile_warns_of_lost_tiles(tmp_path: Path) -> None:
    tiles = ImageFormat(tile=True, quality=90)
    tiled = convert(plant_photos(tmp_path / "images", 4, width=100, height=80), tmp_path / "a.lmdb", images=tiles)
    untiled = convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    assert untiled.warnings == (
        "the images of the store are tiled: without tile (--tile), the tiles are lost; dbloader copy keeps them",
    )
    assert [record.fields for record in records(tmp_path / "b.lmdb")] == [{}] * 4
    again = convert(tmp_path / "a.lmdb", tmp_path / "c.lmdb", images=tiles)
    assert (again.untiled, again.records) == (0, tiled.records)
    assert all("tiles" in record.fields for record in records(tmp_path / "c.lmdb"))


def test_interrupted_conversion_resumes_unless_the_store_was_replaced(tmp_path: Path) -> None:
    root = plant(plant_photos(tmp_path / "images", 60), {"cat/0000.jpg": photo() + bytes(8)})
    whole = convert(root, tmp_path / "a.lmdb")
    interrupt(tmp_path / "a.lmdb", tmp_path / "b.lmdb", 20, shuffle_seed=3)
    shuffled = convert(tmp_path / "a.lmdb", tmp_path / "c.lmdb", shuffle_seed=3, workers=1)
    assert shuffled.digest != whole.digest
    assert convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb", shuffle_seed=3, resume=True).digest == shuffled.digest
    interrupt(tmp_path / "a.lmdb", tmp_path / "d.lmdb", 20)
    plant(root, {"cat/0000.jpg": photo() + b"\1" * 8})  # the new store has the same size
    convert(root, tmp_path / "a.lmdb", overwrite=True)
    with pytest.raises(StoreExistsError, match="list of files"):
        convert(tmp_path / "a.lmdb", tmp_path / "d.lmdb", resume=True)


def test_damaged_record_is_rejected_and_other_records_are_stored(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    convert(plant_photos(tmp_path / "images", 20), place)
    data = place.read_bytes()
    at = data.index(photo(4)[-300:])
    place.write_bytes(data[: at + 10] + b"????" + data[at + 14 :])
    report = convert(place, tmp_path / "b.lmdb")
    assert (report.records, report.rejected) == (19, 1)
    (event,) = events(tmp_path / "b.lmdb")
    assert event["name"] == "cat/0004.jpg"
    assert "is damaged: its CRC-32 is" in event["reason"]


@pytest.mark.parametrize(
    ("image", "message"),
    [(np.zeros((2, 2, 3), np.uint8), "its record 0 is an array of pixels, not"), (None, "its record 0 has no")],
)
def test_store_without_files_is_refused(tmp_path: Path, image: Any, message: str) -> None:
    write_store([Record(image=image, label=1), Record(image=photo(1))], tmp_path / "a.lmdb")
    with pytest.raises(SourceError, match=rf"a\.lmdb: {message}.*; dbloader copy copies a store as it is$"):
        convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    write_store([Record("1.jpg", image=photo(1)), Record("2", image=image)], tmp_path / "c.lmdb")
    assert convert(tmp_path / "c.lmdb", tmp_path / "d.lmdb").rejected == 1
    assert events(tmp_path / "d.lmdb")[0]["name"] == "2"


def test_empty_or_missing_store_is_refused(tmp_path: Path, mongo_uri: str) -> None:
    write_store([], tmp_path / "empty.lmdb")
    with pytest.raises(SourceError, match=r"empty\.lmdb: is a store without records"):
        convert(tmp_path / "empty.lmdb", tmp_path / "b.lmdb")
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        convert(mongo_uri, tmp_path / "b.lmdb")
    assert list(tmp_path.iterdir()) == [tmp_path / "empty.lmdb"]
