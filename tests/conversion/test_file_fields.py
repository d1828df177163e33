"""File fields: further image files of a record, such as a mask."""

from __future__ import annotations

import io
import json
import re
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from dbloader import (
    ImageFormat,
    Record,
    convert,
    copy_store,
    export_store,
    open_store,
    verify_store,
    write_store,
)
from dbloader.errors import ConversionError, ExportError, FieldError, OptionError, SourceError, StoreExistsError
from dbloader.records.record import encode
from dbloader.sources.base import Entry, Loaded
from dbloader.sources.open import open_source
from dbloader.stores.open import create_store
from tests.support.conversion import documents, interrupt, verified
from tests.support.images import encoded, photo, picture, plant, run

MASK = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8) % 3)
MASK.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
SAMPLE: dict[str, Any] = {"image": photo(1, 8, 6), "mask": encoded(MASK, "PNG")}


def made(place: Path, *samples: dict[str, Any], **options: Any) -> Path:
    write_store(samples, place, **{"file_fields": ("mask",), **options})
    return place


# write_store and copy_store


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
    ("value", "what"),
    [(b"no image", "is in no known image format"), ("mask.png", "must be a PIL image"), (np.zeros((2, 2)), "must be")],
)
def test_field_without_an_image_file_is_refused(tmp_path: Path, value: Any, what: str) -> None:
    with pytest.raises(FieldError, match=rf"^sample 1: field 'mask' is one of file_fields, and {what}"):
        made(tmp_path / "a.lmdb", SAMPLE, {**SAMPLE, "mask": value})


@pytest.mark.parametrize(
    ("names", "what"),
    [("mask", " must be different names"), (("mask", "mask"), " must be"), (("label",), ": 'label' is a field of "),
     ((1,), ": a field's name must be a str"), (5, " must be different names")],
)  # fmt: skip
def test_names_that_no_further_field_can_have_are_refused(tmp_path: Path, names: Any, what: str) -> None:
    with pytest.raises(OptionError, match=rf"^file_fields \(--file-field\){what}"):
        made(tmp_path / "a.lmdb", SAMPLE, file_fields=names)


def test_manifest_refuses_wrong_file_fields(tmp_path: Path) -> None:
    with create_store(tmp_path / "a.lmdb") as writer, pytest.raises(FieldError, match="has no valid source"):
        writer.finish(source={"file_fields": "mask"})


def test_copies_and_unions_keep_file_fields(tmp_path: Path) -> None:
    masks = made(tmp_path / "masks.lmdb", SAMPLE)
    bare = made(tmp_path / "bare.lmdb", {"image": photo(2)}, file_fields=())
    depth = made(tmp_path / "depth.lmdb", {"image": photo(3), "depth": picture("PNG")}, file_fields=("depth",))
    assert copy_store(masks, tmp_path / "copy.lmdb").file_fields == ("mask",)
    assert copy_store([bare, masks, depth], tmp_path / "all.lmdb").file_fields == ("mask", "depth")
    with open_store(masks) as store:
        assert write_store(store, tmp_path / "again.lmdb").file_fields == ("mask",)


def test_stores_with_contradicting_file_fields_are_not_united(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("workers", [1, 3])
def test_columns_of_a_listing_become_files_in_their_order(tmp_path: Path, workers: int) -> None:
    root = scenes(tmp_path / "scenes")
    report, (first, second) = converted(root, workers=workers)
    assert list(first.fields) == ["before", "mask", "after", "depth"]
    assert first.fields["mask"] == (root / "masks/a.png").read_bytes()
    assert first.fields["depth"] == (root / "depth/a.tif").read_bytes()
    assert second.fields == {"before": "3", "mask": (root / "masks/b.png").read_bytes(), "after": "4", "depth": None}
    assert report.bytes_read == sum(path.stat().st_size for path in root.glob("*/*.*"))
    assert report.digest == converted(root, shuffle_seed=None, workers=4)[0].digest


def test_column_named_like_a_label_may_be_a_file_field(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    (root / "targets.csv").write_text("image,target,label\nimages/a.jpg,masks/a.png,3\n")
    convert(root, tmp_path / "out.lmdb", listing=root / "targets.csv", file_fields=("target",))
    with open_store(tmp_path / "out.lmdb") as store:
        assert (store[0].label, store[0].fields) == (3, {"target": encoded(MASK, "PNG")})


def test_listing_without_file_fields_keeps_paths_as_text(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    convert(root, tmp_path / "out.lmdb", listing=root / "scenes.csv")
    with open_store(tmp_path / "out.lmdb") as store:
        assert store.manifest.file_fields == ()
        assert store[0].fields["mask"] == "masks/a.png"


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


def test_kept_damage_of_a_field_file_marks_its_record(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    (root / "masks/b.png").write_bytes(photo(5)[:-200])
    report, (first, second) = converted(root, on_damaged="keep")
    assert report.damaged == 1
    assert first.damaged is None
    assert (second.damaged or "").startswith("its mask masks/b.png is damaged")
    assert second.fields["mask"] == photo(5)[:-200]
    assert second.image == photo(2)


def test_field_file_gets_its_end_marker(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    (root / "masks/b.png").write_bytes(photo(5)[:-2])
    (root / "images/b.jpg").write_bytes(photo(6)[:-2])
    report, (_, second) = converted(root)
    assert report.repaired == 1
    assert (second.image, second.fields["mask"]) == (photo(6), photo(5))
    (event,) = map(json.loads, Path(report.report_file).read_text().splitlines())
    marker = "its end marker was missing: appended FF D9"
    assert event["reason"] == f"{marker}; its mask masks/b.png: {marker}"


@pytest.mark.parametrize("images", [ImageFormat(short_side=8), ImageFormat(max_side=8)])
def test_short_side_is_refused_with_file_fields(tmp_path: Path, images: ImageFormat) -> None:
    root = scenes(tmp_path / "scenes")
    with pytest.raises(OptionError, match="not the files in the field 'mask', 'depth'"):
        converted(root, images=images)
    assert not (tmp_path / "out.lmdb").exists()


def test_only_the_image_is_tiled(tmp_path: Path) -> None:
    root = scenes(tmp_path / "scenes")
    (root / "masks/b.png").write_bytes(photo(5))
    _, (_, second) = converted(root, images=ImageFormat(tile=True, quality=90))
    assert second.fields["mask"] == photo(5)
    assert second.image != photo(2)


@pytest.mark.parametrize("source", ["folder", "annotations", "listing"])
def test_file_fields_that_the_source_does_not_have_are_an_error(tmp_path: Path, source: str) -> None:
    root = scenes(tmp_path / "scenes")
    photographs = {
        "images": [{"id": 1, "file_name": "images/a.jpg"}],
        "annotations": [],
        "categories": [{"id": 1, "name": "a"}],
    }
    (root / "coco.json").write_text(json.dumps(photographs))
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


def test_columns_of_metadata_that_end_with_file_name_are_files(tmp_path: Path) -> None:
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
        ({"mask_file_name": "../a.png"}, r"^none of the 2 files could be stored; .*row 1: its path leaves the folder"),
        ({"mask_file_name": 5}, r"row 1: its path cannot be that of a file: 5 \(of its file 'mask'\)"),
        ({"mask_file_name": "masks/a.png", "mask": 1}, "'mask_file_name' and 'mask' are both the field 'mask'"),
        ({"image_file_name": "masks/a.png"}, "rename the column 'image_file_name', which names files"),
    ],
)
def test_rows_of_metadata_with_unusable_files_are_named(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    root = described(scenes(tmp_path / "scenes"), {**METADATA[0], **row}, {**METADATA[0], "file_name": "none.jpg"})
    with pytest.raises((ConversionError, SourceError), match=what):
        convert(root, tmp_path / "a.lmdb")


@pytest.mark.usefixtures("frequent_commits")
def test_interrupted_conversion_with_field_files_resumes(tmp_path: Path) -> None:
    root = plant(tmp_path / "many", {f"{n:02}.jpg": photo(n) for n in range(60)})
    plant(root, {f"{n:02}.png": picture("PNG", n) for n in range(60)})
    (root / "all.csv").write_text("path,mask\n" + "".join(f"{n:02}.jpg,{n:02}.png\n" for n in range(60)))
    options: dict[str, Any] = {"listing": root / "all.csv", "file_fields": ("mask",), "shuffle_seed": 1}
    whole = convert(root, tmp_path / "whole.lmdb", **options)
    interrupt(root, tmp_path / "out.lmdb", 30, **options, workers=1)
    with pytest.raises(StoreExistsError, match="begun with another list of files"):
        convert(root, tmp_path / "out.lmdb", listing=root / "all.csv", shuffle_seed=1, resume=True)
    report = convert(root, tmp_path / "out.lmdb", **options, resume=True)
    assert 0 < report.resumed_at < 60
    assert report.digest == whole.digest == verified(tmp_path / "out.lmdb")
    assert documents(tmp_path / "out.lmdb") == documents(whole.place)


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
    with pytest.raises(OptionError, match="not the files in the field 'mask', 'depth'"):
        convert(place, tmp_path / "small.lmdb", images=ImageFormat(short_side=8))


def unchecked(tmp_path: Path) -> Path:
    """Make a store whose second record has a truncated mask."""
    root = scenes(tmp_path / "scenes")
    (root / "masks/b.png").write_bytes(photo(5)[:-200])
    options: dict[str, Any] = {"listing": root / "scenes.csv", "file_fields": ("mask",), "check": "none"}
    convert(root, tmp_path / "scenes.lmdb", **options)
    return tmp_path / "scenes.lmdb"


def test_verify_finds_damaged_files_and_convert_rejects_them(tmp_path: Path) -> None:
    place = unchecked(tmp_path)
    assert not verify_store(place).problems
    report = verify_store(place, decode=True)
    assert report.problems == {"undecodable": 1}
    assert report.first[0]["name"] == "images/b.jpg"
    assert "its mask is damaged" in report.first[0]["reason"]
    again = convert(place, tmp_path / "again.lmdb")
    assert (again.records, again.rejected) == (1, 1)
    with open_store(tmp_path / "again.lmdb") as store:
        assert store.manifest.file_fields == ("mask",)


def test_files_are_compared_with_those_of_the_source(tmp_path: Path) -> None:
    place = stored(tmp_path)
    root = tmp_path / "scenes"
    options: dict[str, Any] = {"against": root, "listing": root / "scenes.csv"}
    assert verify_store(place, **options).compared == {"same": 2}
    (root / "masks/b.png").write_bytes(picture("PNG", 9))
    (problem,) = verify_store(place, **options).first
    assert problem["reason"].endswith("has other bytes in 'mask' than the file masks/b.png")


@pytest.mark.slow
def test_show_and_info_name_the_files(tmp_path: Path) -> None:
    place = stored(tmp_path)
    shown = run("show", place, "0", "--json").stdout
    assert json.loads(shown)["fields"]["mask"].startswith("PNG, 8 x 6, 8-bit, ")
    assert json.loads(run("show", place, "1", "--json").stdout)["fields"]["depth"] is None
    assert "depth (2, image files), mask (2, image files)" in run("info", place).stdout


def test_memory_budget_counts_the_files(tmp_path: Path) -> None:
    root, held = scenes(tmp_path / "scenes"), list[int]()
    place = stored(tmp_path / "other")
    listed: dict[str, Any] = {"listing": root / "scenes.csv", "file_fields": ("mask", "depth")}
    alone: dict[str, Any] = {"listing": None}
    for source, options in ((root, listed), (place, alone)):
        with closing(open_source(source, **options)) as found:
            held.clear()
            entries = [entry for entry in found.entries() if isinstance(entry, Entry)]
            loaded = [*found.load(entries, held.append)]
        nbytes = sum(len(part.data) for part in loaded if isinstance(part, Loaded))
        files = (root / "masks/a.png", root / "masks/b.png", root / "depth/a.tif")
        assert sum(held) == nbytes + sum(path.stat().st_size for path in files)


# Other sources, and exports


def tarred(place: Path, *files: tuple[str, bytes]) -> Path:
    with tarfile.open(place, "w") as out:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return place


SHARD = (
    ("1.jpg", photo(1)), ("1.mask.png", picture("PNG", 1)), ("1.cls", b"0"),
    ("2.mask.png", picture("PNG", 2)), ("2.jpg", photo(2)), ("2.cls", b"1"),
    ("3.cls", b"1"), ("3.jpg", photo(3)),
)  # fmt: skip


def test_image_beside_another_in_a_tar_may_be_a_file_field(tmp_path: Path) -> None:
    shard = tarred(tmp_path / "a.tar", *SHARD)
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


def test_value_beside_an_image_in_a_tar_stays_a_value(tmp_path: Path) -> None:
    shard = tarred(tmp_path / "a.tar", *SHARD, ("4.jpg", photo(4)), ("4.fields.json", b'{"mask": 5}'))
    report = convert(shard, tmp_path / "a.lmdb", file_fields=("mask",))
    (event,) = map(json.loads, Path(report.report_file).read_text().splitlines())
    assert (event["name"], event["reason"]) == ("4.jpg", "its mask is no image file, but 5")


def test_further_images_of_a_parquet_file_are_file_fields(tmp_path: Path) -> None:
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


def test_exported_folder_has_a_folder_for_each_file_field(tmp_path: Path) -> None:
    export_store(stored(tmp_path), tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/metadata.jsonl").read_text().splitlines()]
    assert [(row["mask_file_name"], row["depth_file_name"]) for row in rows] == [
        ("mask/images/a.png", "depth/images/a.tiff"), ("mask/images/b.png", None),
    ]  # fmt: skip
    assert (tmp_path / "out/mask/images/b.png").read_bytes() == (tmp_path / "scenes/masks/b.png").read_bytes()


def test_tars_for_webdataset_have_the_files_beside_the_image(tmp_path: Path) -> None:
    export_store(stored(tmp_path), tmp_path / "out", format="webdataset")
    with tarfile.open(tmp_path / "out/shard-000000.tar") as tar:
        names = [name for name in tar.getnames() if name.startswith("images/a.")]
    assert names == ["images/a.jpg", "images/a.fields.json", "images/a.mask.png", "images/a.depth.tiff"]
    assert json.loads((tmp_path / "out/file_fields.json").read_text()) == ["mask", "depth"]


@pytest.mark.parametrize("format", ["folder", "webdataset"])
def test_ambiguous_file_names_are_not_exported(
    tmp_path: Path,
    format: str,  # noqa: A002
) -> None:
    fields: dict[str, Any] = {"mask_file_name": "a text"} if format == "folder" else {"mask": b"?"}
    place = tmp_path / "a.lmdb"
    with create_store(place) as writer:
        record = Record(image=photo(1), name="a.jpg", fields=fields)
        writer.write([encode(record)])
        writer.finish(source={"file_fields": ["mask"]})
    with pytest.raises(ExportError, match=r"record 0 \(a.jpg\) has a (field 'mask_file_name'|file in no known)"):
        export_store(place, tmp_path / "out", format=format)


def test_field_with_a_slash_is_not_exported_to_a_tar(tmp_path: Path) -> None:
    place = made(tmp_path / "a.lmdb", {"image": photo(1), "name": "a.jpg", "a/b": picture("PNG")}, file_fields=("a/b",))
    with pytest.raises(ExportError, match=r"record 0 \(a.jpg\) has a file in 'a/b', which would be in a folder"):
        export_store(place, tmp_path / "out", format="webdataset")


@pytest.mark.parametrize("value", [5, "a text", np.zeros((2, 2))])
def test_verify_names_records_whose_file_fields_are_no_files(tmp_path: Path, value: Any) -> None:
    place = tmp_path / "a.lmdb"
    with create_store(place) as writer:
        writer.write([encode(Record(image=photo(1), name="a.jpg", fields={"mask": value}))])
        writer.finish(source={"file_fields": ["mask"]})
    for check in ("decode", "none"):
        with pytest.raises(ConversionError, match="its mask is no image file, but "):
            convert(place, tmp_path / "b.lmdb", check=check)
    assert verify_store(place, decode=True).problems == {"undecodable": 1}
    for kind in ["folder", "webdataset", "parquet"]:
        with pytest.raises(ExportError, match=r"record 0 \(a.jpg\) has in 'mask' "):
            export_store(place, tmp_path / "out", format=kind)
