"""A store is complete, in the order of its source, and the same for any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageFile

from dbloader.conversion.convert import convert
from dbloader.conversion.report import Progress
from dbloader.conversion.transcode import ImageFormat
from dbloader.errors import (
    ConversionError,
    OptionError,
    SourceError,
    SourceNotFoundError,
    StoreAccessError,
    StoreExistsError,
)
from dbloader.sources.folder import LATE, FolderSource
from dbloader.stores.open import open_store
from tests.support.conversion import documents, events, records, siblings, verified
from tests.support.images import KINDS, photo, plant, plant_kinds, plant_photos


def test_records_are_the_files_byte_for_byte_in_source_order(root: Path, place: Path) -> None:
    plant_photos(root, 100, ("b", "a", "c"))
    report = convert(root, place)
    names = [entry.name for entry in FolderSource(root).entries()]
    assert [record.name for record in records(place)] == names
    for record in records(place):
        assert record.name is not None
        assert record.image == (root / record.name).read_bytes()
        assert record.label == ("a", "b", "c").index(record.name[0])
        assert (record.width, record.height, record.format) == (40, 30, "JPEG")
        assert (record.resized_from, record.damaged) == (None, None)
    size = sum(path.stat().st_size for path in root.rglob("*.jpg"))
    assert report.records == report.files == 100
    assert report.bytes_read == report.image_bytes == size
    assert report.digest == verified(place)
    assert report.place == str(place)
    assert report.seconds > 0
    with open_store(place) as store:
        assert store.manifest.classes == ("a", "b", "c")
        assert store.manifest.label_counts == {0: 33, 1: 34, 2: 33}
        assert store.manifest.source["path"] == str(root)


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 5, "images": ImageFormat(max_side=16)}])
def test_records_are_equal_for_any_number_of_workers(root: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    plant_photos(root, 40)
    plant_kinds(root, *KINDS)
    one, four = (convert(root, tmp_path / f"{n}.lmdb", workers=n, **options) for n in (1, 4))
    assert documents(one.place) == documents(four.place)
    assert events(one.place) == events(four.place)
    assert one.digest == four.digest == verified(four.place)


def test_seed_shuffles_the_records_without_loss(root: Path, tmp_path: Path) -> None:
    plant_photos(root, 30)
    plain, *shuffled = (
        records(convert(root, tmp_path / f"{seed}.lmdb", shuffle_seed=seed).place) for seed in (None, 0, 2**63 - 1)
    )
    orders = [[record.name for record in store] for store in (plain, *shuffled)]
    assert len({*map(tuple, orders)}) == 3
    for store in shuffled:
        assert {(r.name, r.label, r.image) for r in store} == {(r.name, r.label, r.image) for r in plain}
        assert [record.index for record in store] == [*range(30)]


def test_relative_and_nested_places_are_allowed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_photos(root, 3)
    monkeypatch.chdir(tmp_path)
    first = convert("images", "o ü.db")
    second = convert("images/", "images/cat/out.lmdb")
    monkeypatch.chdir(root)
    third = convert(".", "out.lmdb")
    assert first.digest == second.digest == third.digest
    with open_store(tmp_path / "o ü.db") as store:
        assert store.manifest.source["path"] == str(root)


def test_load_truncated_images_does_not_hide_damage(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_kinds(root, "half a png")
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert convert(root, place).rejected == 1
    assert ImageFile.LOAD_TRUNCATED_IMAGES


# Conversions that store nothing, and errors raised before anything is stored


@pytest.mark.parametrize("overwrite", [False, True])
def test_conversion_without_any_storable_file_changes_nothing(root: Path, place: Path, overwrite: bool) -> None:
    old = convert(plant_photos(root, 2), place).digest if overwrite else None
    plant(root, {"cat/0000.jpg": b"text", "dog/0001.jpg": b""})
    with pytest.raises(ConversionError, match=r"no file of 2 could be stored; the first is cat/0000.jpg: is in"):
        convert(root, place, overwrite=overwrite)
    assert siblings(place) == ({place.name} if overwrite else set())
    assert old is None or verified(place) == old


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"check": "all"}, OptionError, "check must be one of decode, structure, none, got 'all'"),
        ({"on_bad": "keep"}, OptionError, "on_bad must be one of reject, fail, got 'keep'"),
        ({"check": "none", "on_damaged": "keep"}, OptionError, "check='none' finds no damage, so on_damaged='keep'"),
        (
            {"images": ImageFormat(raw=True), "on_damaged": "keep"},
            OptionError,
            r"cannot store damaged images as pixels: leave out on_damaged='keep' \(--on-damaged keep\)",
        ),
        ({"workers": 0}, OptionError, "workers must be at least 1, got 0"),
        ({"shuffle_seed": 2**63}, OptionError, rf"shuffle_seed must be from -2\*\*63 to 2\*\*63 - 1, got {2**63}"),
        ({"listing": 5}, TypeError, "listing must be a str or a path, or None, got int"),
        ({"workers": "2"}, TypeError, "workers must be an int or None, got '2'"),
        ({"overwrite": "no"}, TypeError, "overwrite must be True or False, got 'no'"),
        ({"file_fields": "mask"}, OptionError, r"file_fields \(--file-field\) must be different names, such as"),
        ({"images": {"raw": True}}, TypeError, r"images must be an ImageFormat, such as .*, got {'raw': True}"),
    ],
)
def test_options_are_checked_before_anything_is_done(
    root: Path, place: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    plant_photos(root, 1)
    with pytest.raises(error, match=message):
        convert(root, place, **options)
    assert siblings(place) == set()


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_source_that_cannot_be_converted_leaves_nothing(root: Path, place: Path, options: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="it contains no class folders"):
        convert(root, place, **options)
    (root / "cat").mkdir()
    with pytest.raises(SourceError, match="there is not one image in its class folders"):
        convert(root, place, **options)
    with pytest.raises(SourceNotFoundError, match="there is no such folder"):
        convert(root / "none", place, **options)
    assert siblings(place) == set()


def test_unwritable_destination_is_refused_before_the_source_is_read(root: Path, tmp_path: Path) -> None:
    (root / "cat").mkdir()  # an empty class would make reading the folder fail
    taken = tmp_path / "taken.txt"
    taken.write_text("not a store")
    with pytest.raises(StoreAccessError, match=r"cannot be written: No such file .*: its folder does not exist"):
        convert(root, tmp_path / "none" / "out.lmdb")
    with pytest.raises(StoreExistsError, match="is not a dbloader store and will not be overwritten"):
        convert(root, taken, overwrite=True)
    assert taken.read_text() == "not a store"


def test_every_image_of_a_changing_folder_is_stored_or_named(root: Path, place: Path) -> None:
    convert_while_changing(root, place)


def convert_while_changing(root: Path, place: Path, **options: Any) -> None:
    """Convert a folder while its files change, and check that the report names each file that is not stored."""
    plant_photos(root, 40)

    def change(progress: Progress) -> None:
        """Change the folder after it was listed, and before its files are read."""
        if progress.done == 0 and not (root / "owl").exists():
            plant(root, {"cat/late.jpg": photo(90), "owl/0.jpg": photo(91), "owl/more/1.jpg": photo(92)})
            (root / "cat" / "0000.jpg").unlink()
            (root / "dog" / "0001.jpg").rename(root / "dog" / "renamed.jpg")

    report = convert(root, place, progress=change, **options)
    late = ["cat/late.jpg", "dog/renamed.jpg", "owl/0.jpg", "owl/more/1.jpg"]
    lines = [json.loads(line) for line in Path(report.report_file).read_text().splitlines()]
    named = {line["name"]: line["reason"] for line in lines}
    gone = {name: named.pop(name) for name in ("cat/0000.jpg", "dog/0001.jpg")}
    assert {*gone.values()} == {"cannot be read: No such file or directory"}
    assert named == dict.fromkeys(late, LATE)
    assert (report.files, report.records, report.rejected, report.warnings) == (44, 38, 6, ())


def test_image_folder_may_contain_its_store(tmp_path: Path) -> None:
    root = plant_photos(tmp_path / "images", 6)
    for _ in range(2):
        assert convert(root, root / "train.lmdb", overwrite=True).records == 6
