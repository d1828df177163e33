"""File fields are additional image files of a record, such as a mask."""

from __future__ import annotations

import io
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from dbloader import ImageFormat, Record, convert, copy_store, export_store, open_store, verify_store, write_store
from dbloader.errors import ConversionError, ExportError, FieldError, OptionError, SourceError
from dbloader.ext.exports.export import FORMATS
from dbloader.ext.sources.listing import read_listing
from dbloader.ext.sources.store import StoreSource
from dbloader.sources.base import Entry, Loaded
from tests.support.images import encoded, photo, picture, plant
from tests.support.jpegs import turned_exif
from tests.support.sources import pack
from tests.support.stores import store_records

MASK = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8) % 3)
MASK.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
SAMPLE: dict[str, Any] = {"image": photo(1, 8, 6), "mask": encoded(MASK, "PNG")}


def made(place: Path, *samples: dict[str, Any], **options: Any) -> Path:
    write_store(samples, place, **{"file_fields": ("mask",), **options})
    return place


def test_file_fields_keep_bytes_and_palettes(tmp_path: Path) -> None:
    samples = [SAMPLE, {"image": SAMPLE["image"], "mask": MASK}, {"image": SAMPLE["image"]}, {**SAMPLE, "mask": None}]
    with open_store(made(tmp_path / "a.lmdb", *samples)) as store:
        assert store.manifest.file_fields == ("mask",)
        first, second, third, fourth = store.read(range(4))
    assert first.fields["mask"] == SAMPLE["mask"]
    with Image.open(io.BytesIO(second.fields["mask"])) as mask:
        assert mask.mode == "P"
        assert mask.tobytes() == MASK.tobytes()
    assert "mask" not in third.fields
    assert fourth.fields == {"mask": None}


@pytest.mark.parametrize(
    ("value", "what"), [(b"no image", "is in no known image format"), ("mask.png", "must be a PIL image")]
)
def test_write_store_refuses_a_file_field_that_is_no_image(tmp_path: Path, value: Any, what: str) -> None:
    with pytest.raises(FieldError, match=rf"^sample 1: field 'mask' is in file_fields, (so it|but) {what}"):
        made(tmp_path / "a.lmdb", SAMPLE, {**SAMPLE, "mask": value})


@pytest.mark.parametrize(
    ("names", "what"),
    [("mask", " must be different names"), (("label",), ": 'label' is a reserved field"), ((1,), ": a field")],
)
def test_invalid_names_of_file_fields_are_refused(tmp_path: Path, names: Any, what: str) -> None:
    with pytest.raises(OptionError, match=rf"^file_fields \(--file-field\){what}"):
        made(tmp_path / "a.lmdb", SAMPLE, file_fields=names)


def test_copies_and_unions_keep_file_fields(tmp_path: Path) -> None:
    masks = made(tmp_path / "masks.lmdb", SAMPLE)
    bare = made(tmp_path / "bare.lmdb", {"image": photo(2)}, file_fields=())
    depth = made(tmp_path / "depth.lmdb", {"image": photo(3), "depth": picture("PNG")}, file_fields=("depth",))
    assert copy_store(masks, tmp_path / "copy.lmdb").file_fields == ("mask",)
    assert copy_store([bare, masks, depth], tmp_path / "all.lmdb").file_fields == ("mask", "depth")
    with open_store(masks) as store:
        assert write_store(store, tmp_path / "again.lmdb").file_fields == ("mask",)


def test_stores_with_contradicting_file_fields_are_not_merged(tmp_path: Path) -> None:
    masks = made(tmp_path / "masks.lmdb", SAMPLE)
    texts = made(tmp_path / "texts.lmdb", {"image": photo(2), "mask": "none"}, file_fields=())
    with pytest.raises(OptionError, match="'mask' has image files in one store, and other values in another"):
        copy_store([masks, texts], tmp_path / "all.lmdb")


# convert


def scenes(root: Path) -> Path:
    """Plant two photographs with their masks, and a listing of them."""
    files = {"images/a.jpg": photo(1), "images/b.jpg": photo(2)}
    files |= {"masks/a.png": encoded(MASK, "PNG"), "masks/b.png": picture("PNG", 3), "depth/a.tif": picture("TIFF", 4)}
    plant(root, files)
    (root / "scenes.csv").write_text(
        "path,before,mask,after,depth\nimages/a.jpg,1,masks/a.png,2,depth/a.tif\nimages/b.jpg,3,./masks//b.png,4,\n"
    )
    return root


def converted(root: Path, **options: Any) -> tuple[Any, list[Any]]:
    place = root.parent / "out.lmdb"
    options = {"listing": root / "scenes.csv", "file_fields": ("mask", "depth"), **options}
    report = convert(root, place, overwrite=True, **options)
    with open_store(place) as store:
        assert store.manifest.file_fields == ("mask", "depth")
        return report, store.read(range(len(store)))


def test_listing_columns_become_file_fields_in_column_order(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    report, (first, second) = converted(root, workers=1)
    assert list(first.fields) == ["before", "mask", "after", "depth"]
    assert first.fields["mask"] == (root / "masks/a.png").read_bytes()
    assert first.fields["depth"] == (root / "depth/a.tif").read_bytes()
    assert second.fields == {"before": 3, "mask": (root / "masks/b.png").read_bytes(), "after": 4, "depth": None}
    assert report.bytes_read == sum(path.stat().st_size for path in root.glob("*/*.*"))
    assert report.digest == converted(root, shuffle_seed=None, workers=4)[0].digest
    assert report.warnings == ()  # a mask is a target, so no label is missing


@pytest.mark.parametrize(
    ("orientation", "size", "of_mask", "is_unclear"),
    [(3, (8, 6), 1, True), (3, (8, 6), 3, False), (6, (8, 6), 1, False), (6, (6, 6), 1, True), (1, (8, 6), 1, False)],
)
def test_mask_that_exif_does_not_turn_with_its_image_gives_a_warning(
    tmp_path: Path, orientation: int, size: tuple[int, int], of_mask: int, is_unclear: bool
) -> None:
    image, mask = Image.new("RGB", size), Image.new("L", size)
    files = {"a.png": encoded(image, "PNG", exif=turned_exif(orientation))}
    root = plant(tmp_path / "in", {**files, "m.png": encoded(mask, "PNG", exif=turned_exif(of_mask))})
    (root / "x.csv").write_text("path,mask\na.png,m.png\n")
    report = convert(root, tmp_path / "out.lmdb", listing=root / "x.csv", file_fields=("mask",))
    assert (report.turned, len(report.warnings)) == (is_unclear, is_unclear)
    assert all("for upright masks, train with exif_transpose=True" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, r"^its mask masks/b.png cannot be read: No such file or directory$"),
        (b"no image", r"^its mask masks/b.png is in no known image format"),
        (picture("PNG")[:200], r"^its mask masks/b.png (is damaged|does not decode)"),
        (photo(5)[:-200], r"^its mask masks/b.png is damaged"),
    ],
)
def test_bad_field_file_rejects_its_record_and_is_named(tmp_path: Path, data: bytes | None, reason: str) -> None:
    root = scenes(tmp_path / "scenes")
    (root / "masks/b.png").unlink() if data is None else (root / "masks/b.png").write_bytes(data)
    report, records = converted(root)
    assert (report.records, report.rejected) == (1, 1)
    assert [record.name for record in records] == ["images/a.jpg"]
    (event,) = map(json.loads, Path(report.report_file).read_text().splitlines())
    assert (event["name"], event["event"]) == ("images/b.jpg", "rejected")
    assert re.search(reason, event["reason"])
    with pytest.raises(ConversionError, match=r"images/b.jpg: its mask masks/b.png"):
        converted(root, on_bad="fail", on_damaged="fail")


def test_record_with_a_kept_damaged_field_file_is_marked_damaged(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    (root / "masks/b.png").write_bytes(photo(5)[:-200])
    report, (first, second) = converted(root, on_damaged="keep")
    assert report.damaged == 1
    assert first.damaged is None
    assert (second.damaged or "").startswith("its mask masks/b.png is damaged")
    assert second.fields["mask"] == photo(5)[:-200]
    assert second.image == photo(2)


def test_resizing_is_refused_with_file_fields(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    with pytest.raises(OptionError, match="not the files in the field 'mask', 'depth'"):
        converted(root, images=ImageFormat(short_side=8))
    assert not (tmp_path / "out.lmdb").exists()


@pytest.mark.parametrize("source", ["folder", "annotations", "listing"])
def test_file_field_that_the_source_lacks_is_an_error(tmp_path: Path, source: str) -> None:
    root = scenes(tmp_path / "scenes")
    photographs, categories = [{"id": 1, "file_name": "images/a.jpg"}], [{"id": 1, "name": "a"}]
    (root / "coco.json").write_text(json.dumps({"images": photographs, "annotations": [], "categories": categories}))
    listing = {"folder": None, "annotations": root / "coco.json", "listing": root / "scenes.csv"}[source]
    where = root if listing is None else listing
    with pytest.raises(OptionError, match=rf"^file_fields \(--file-field\) 'masks': {where} has no such files"):
        convert(root, tmp_path / "out.lmdb", listing=listing, file_fields=("masks",))


METADATA: list[dict[str, Any]] = [
    {"file_name": "images/a.jpg", "mask_file_name": "masks/a.png", "text": "a", "depth": "depth/a.tif"},
    {"file_name": "images/b.jpg", "text": "b", "mask_file_name": None},
]


def described(root: Path, *rows: dict[str, Any]) -> Path:
    (root / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def test_metadata_columns_ending_with_file_name_are_file_fields(tmp_path: Path) -> None:
    root = described(scenes(tmp_path / "scenes"), *METADATA)
    report = convert(root, tmp_path / "a.lmdb")
    with open_store(tmp_path / "a.lmdb") as store:
        assert store.manifest.file_fields == ("mask",)
        assert list(store[0].fields.items()) == [
            ("mask", encoded(MASK, "PNG")), ("text", "a"), ("depth", "depth/a.tif"),
        ]  # fmt: skip
        assert store[1].fields == {"text": "b", "mask": None}
    (left_out,) = [warning for warning in report.warnings if "left out" in warning]
    assert left_out.startswith("2 images are in the folder")  # masks/b.png and depth/a.tif, but not masks/a.png
    assert convert(root, tmp_path / "b.lmdb", file_fields=("depth",)).records == 2
    with open_store(tmp_path / "b.lmdb") as store:
        assert store.manifest.file_fields == ("depth", "mask")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"mask_file_name": "../a.png"}, r"^no file of 2 could be stored; .*row 1: its path leaves the folder"),
        ({"mask_file_name": 5}, r"row 1: its path is not valid for a file: 5 \(of its file 'mask'\)"),
        ({"mask_file_name": "masks/a.png", "mask": 1}, "'mask_file_name' and 'mask' would be the same field"),
        ({"image_file_name": "masks/a.png"}, "rename the column 'image_file_name', which names files"),
    ],
)
def test_error_names_the_metadata_row_with_an_unusable_file(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    root = described(scenes(tmp_path / "scenes"), {**METADATA[0], **row}, {**METADATA[0], "file_name": "none.jpg"})
    with pytest.raises((ConversionError, SourceError), match=what):
        convert(root, tmp_path / "a.lmdb")


# Stores with file fields


def stored(tmp_path: Path, **options: Any) -> Path:
    root = scenes(tmp_path / "scenes")
    options = {"listing": root / "scenes.csv", "file_fields": ("mask", "depth"), **options}
    convert(root, tmp_path / "scenes.lmdb", **options)
    return tmp_path / "scenes.lmdb"


def test_converted_store_keeps_and_checks_field_files(tmp_path: Path) -> None:
    place = stored(tmp_path)
    again = convert(place, tmp_path / "again.lmdb")
    with open_store(place) as one, open_store(tmp_path / "again.lmdb") as other:
        assert other.manifest.file_fields == ("mask", "depth")
        assert one.manifest.digest == other.manifest.digest
        files = [record.fields[name] or b"" for record in one for name in ("mask", "depth")]
        assert again.bytes_read == one.manifest.image_bytes + sum(map(len, files))


def test_memory_budget_of_a_conversion_counts_field_files(tmp_path: Path) -> None:
    place, held = stored(tmp_path), list[int]()
    listing = read_listing(tmp_path / "scenes" / "scenes.csv", tmp_path / "scenes", ("mask", "depth"))
    for source in (listing, StoreSource(place)):
        with closing(source):
            held.clear()
            loaded = [*source.load([entry for entry in source.entries() if isinstance(entry, Entry)], held.append)]
        parts = [part for part in loaded if isinstance(part, Loaded)]
        files = [value for part in parts for value in part.entry.fields.values() if isinstance(value, bytes)]
        assert (len(parts), len(files)) == (2, 3)
        assert sum(held) == sum(map(len, [*files, *(part.data for part in parts)]))


def test_verify_finds_damaged_field_files_and_convert_rejects_them(tmp_path: Path) -> None:
    root, place = scenes(tmp_path / "scenes"), tmp_path / "scenes.lmdb"
    (root / "masks/b.png").write_bytes(photo(5)[:-200])
    convert(root, place, listing=root / "scenes.csv", file_fields=("mask",), check="none")
    assert not verify_store(place).problems
    report = verify_store(place, decode=True)
    assert report.problems == {"undecodable": 1}
    assert report.first[0]["name"] == "images/b.jpg"
    assert "its mask is damaged" in report.first[0]["reason"]
    again = convert(place, tmp_path / "again.lmdb")
    assert (again.records, again.rejected) == (1, 1)
    with open_store(tmp_path / "again.lmdb") as store:
        assert store.manifest.file_fields == ("mask",)


def test_verify_compares_field_files_with_the_source(tmp_path: Path) -> None:
    place = stored(tmp_path)
    root = tmp_path / "scenes"
    options: dict[str, Any] = {"against": root, "listing": root / "scenes.csv"}
    assert verify_store(place, **options).compared == {"same": 2}
    (root / "masks/b.png").write_bytes(picture("PNG", 9))
    (problem,) = verify_store(place, **options).first
    assert problem["reason"].endswith("has a field 'mask' that differs from the bytes of the file masks/b.png")


# Other sources, and exports


SHARD = {
    "1.jpg": photo(1), "1.mask.png": picture("PNG", 1), "1.cls": b"0",
    "2.mask.png": picture("PNG", 2), "2.jpg": photo(2), "2.cls": b"1",
    "3.cls": b"1", "3.jpg": photo(3),
}  # fmt: skip


def test_second_image_of_a_tar_sample_is_a_file_field(tmp_path: Path) -> None:
    shard = pack(tmp_path / "a.tar", SHARD)
    report = convert(shard, tmp_path / "a.lmdb", file_fields=("mask",))
    assert (report.records, report.rejected) == (3, 0)
    with open_store(tmp_path / "a.lmdb") as store:
        assert store.manifest.file_fields == ("mask",)
        assert [(record.name, record.label, record.image) for record in store] == [
            ("1.jpg", 0, photo(1)), ("2.jpg", 1, photo(2)), ("3.jpg", 1, photo(3)),
        ]  # fmt: skip
        assert [record.fields.get("mask") for record in store] == [picture("PNG", 1), picture("PNG", 2), None]
    convert(shard, tmp_path / "bytes.lmdb")
    with open_store(tmp_path / "bytes.lmdb") as store:
        assert store.manifest.file_fields == ()
        assert store[0].fields == {"mask_png": picture("PNG", 1)}


def test_second_image_column_of_parquet_is_a_file_field(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "annotation": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    (tmp_path / "apart.png").write_bytes(picture("PNG", 5))
    columns = {
        "image": [{"bytes": photo(number), "path": f"{number}.jpg"} for number in range(5)],
        "scene": [*"abcde"],
        "annotation": [
            {"bytes": picture("PNG", 3), "path": None}, None, {"bytes": None, "path": "apart.png"},
            {"bytes": None, "path": None}, {"bytes": photo(5)[:-200], "path": "half.jpg"},
        ],
        "extra": [{"bytes": picture("PNG", 4), "path": "x.png"}] * 5,
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    report = convert(tmp_path / "a.parquet", tmp_path / "a.lmdb", file_fields=("extra",))
    with open_store(tmp_path / "a.lmdb") as store:
        assert store.manifest.file_fields == ("annotation", "extra")
        extra = {"extra": picture("PNG", 4)}
        assert [record.fields for record in store] == [
            {"scene": "a", "annotation": picture("PNG", 3), **extra},
            {"scene": "b", "annotation": None, **extra},
            {"scene": "c", "annotation": picture("PNG", 5), **extra},
        ]
    reasons = [json.loads(line)["reason"] for line in Path(report.report_file).read_text().splitlines()]
    assert reasons[0] == "its annotation of row 3 has neither bytes nor a path"
    assert reasons[1].startswith("its annotation half.jpg is damaged")


def test_stored_file_field_that_is_no_file_is_an_error_everywhere(tmp_path: Path) -> None:
    place = tmp_path / "a.lmdb"
    boxes = {"boxes": np.zeros((1, 4)), "box_labels": np.zeros(1, np.int64)}
    record = Record(image=photo(1), name="a.jpg", fields={"mask": 5, **boxes})
    store_records(place, [record], classes=("cat",), source={"file_fields": ["mask"]})
    with pytest.raises(ConversionError, match="its mask is not an image file: "):
        convert(place, tmp_path / "b.lmdb", check="none")
    assert verify_store(place, decode=True).problems == {"undecodable": 1}
    for kind in FORMATS:
        with pytest.raises(ExportError, match=r"the field 'mask' of record 0 \(a\.jpg\) is 5, but the manifest"):
            export_store(place, tmp_path / "out", format=kind)
        assert not (tmp_path / "out").exists()
