"""WebDataset can read exports as tar files, and `convert` makes the same store from them."""

from __future__ import annotations

import json
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dbloader import Record, convert, export_store, open_store, write_store
from dbloader.errors import ExportError, SourceError
from tests.support.conversion import events, records
from tests.support.images import photo, picture, plant
from tests.support.samples import same

# WebDataset leaves closing a shard's file to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FIELDS: dict[str, Any] = {
    "caption": "a c\u00e4t\n", "mask": picture("PNG", 3), "boxes": np.eye(3, dtype=np.float32), "count": -(2**63),
    "odd": [math.inf, -math.inf, math.nan, -0.0, None, True, {"x.y": b"", "z": [np.arange(3)]}], "score": 0.1,
}  # fmt: skip


def exported(store: Path) -> Path:
    return store.parent / export_store(store, store.with_suffix(".shards"), format="webdataset").destination


def samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples as the real WebDataset decodes them."""
    shards = sorted(map(str, folder.glob("*.tar")))
    return [*webdataset.WebDataset(shards, shardshuffle=False).decode("pil")]


def check_same(store: Path, **options: Any) -> None:
    """Check that an export gives the same store again."""
    convert(exported(store), store.with_suffix(".again"), **options)
    with open_store(store) as first, open_store(store.with_suffix(".again")) as second:
        assert [*second.names()] == [*first.names()]
        assert second.manifest.digest == first.manifest.digest
        assert second.manifest.classes == first.manifest.classes


def test_webdataset_reads_images_labels_and_fields(tmp_path: Path) -> None:
    files = [Record("cat/1.jpg", 1, photo(1), fields={"caption": "a cat"}), Record("dog/2.PNG", 0, picture("PNG"))]
    write_store(files, tmp_path / "a.lmdb", classes=("dog", "cat"))
    first, second = samples(exported(tmp_path / "a.lmdb"))
    assert (first["__key__"], first["jpg"].size, first["cls"]) == ("cat/1", (40, 30), 1)
    assert first["fields.json"] == {"caption": "a cat"}
    assert (second["__key__"], second["png"].size, second["cls"]) == ("dog/2", (24, 18), 0)
    assert second.keys() == {"__key__", "__url__", "__local_path__", "png", "cls"}
    assert json.loads((tmp_path / "a.shards" / "classes.json").read_text()) == ["dog", "cat"]


def test_records_survive_export_and_conversion_completely(tmp_path: Path) -> None:
    files: list[dict[str, Any]] = [
        {"name": "x.jpg", "label": 1, "image": photo(1), **FIELDS},
        {"image": photo(2), "resized_from": (80, 60), "tiles": b"t"},
        {"name": "x.jpg", "label": 2, "image": photo(3)},
        {"name": "y.png", "label": 0, "image": photo(4), "damaged": "a mark"},
        {"name": "y.jpg", "label": 0, "image": photo(5)},
        {"name": "record-000000001.jpg", "label": None, "image": photo(5)},
        {"name": "alone", "label": 0, "image": photo(6)},
    ]
    write_store(files, tmp_path / "a.lmdb", classes=("b", "a", "7"))
    check_same(tmp_path / "a.lmdb")
    for before, after in zip(records(tmp_path / "a.lmdb"), records(tmp_path / "a.again"), strict=True):
        assert same(after.fields, before.fields)
    keys = [sample["__key__"] for sample in samples(tmp_path / "a.shards")]
    assert keys == [*(f"record-{number:09}" for number in range(6)), "alone"]


def test_unnamed_labels_survive_export_and_conversion(tmp_path: Path) -> None:
    labels = (0, -5, None, 2**63 - 1, -(2**63) + 1)
    files = [{"name": f"{at % 2}/{at}.jpg", "label": label, "image": photo(at)} for at, label in enumerate(labels)]
    write_store(files, tmp_path / "a.lmdb")
    check_same(tmp_path / "a.lmdb")


UNSAFE = ("../x.jpg", "/etc/x.jpg", "..", "a/../b.jpg", "..\\x/y.jpg", "__x__/a.jpg", ".x.jpg", "a//b.jpg", "a.tar")
NAMES = st.text(st.sampled_from("ab./\\ \n\0_\u00e4-"), min_size=1, max_size=12) | st.sampled_from([*UNSAFE, "x" * 300])


@settings(max_examples=40)
@given(names=st.lists(NAMES | st.builds("{}.jpg".format, NAMES), min_size=1, max_size=6))
@example(names=[".x/y.jpg"])
def test_names_survive_export_and_no_path_in_a_tar_leaves_the_folder(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("names")
    write_store([{"name": name, "label": 0, "image": photo(1)} for name in names], folder / "a.lmdb")
    check_same(folder / "a.lmdb", check="structure")
    for shard in (folder / "a.shards").glob("*.tar"):
        with tarfile.open(shard) as tar:
            paths = tar.getnames()
    assert len({*paths}) == len(paths)
    assert not [path for path in paths if path.startswith("/") or "\\" in path or ".." in path.split("/")]
    assert len(samples(folder / "a.shards")) == len(names)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"name": "1.jpg"}, r"record 0 \(1\.jpg\) has no image"),
        ({"image": np.zeros((2, 2, 3))}, r"record 0 \(without a name\) has an array of float64 of the shape \(2, 2, 3"),
        ({"image": b"unknown"}, "has an image of the format unknown, which convert does not read"),
        ({"image": photo(1), "x": bytes(2**24)}, "has 22,369,6.. bytes of fields, but convert reads"),
    ],
)  # fmt: skip
def test_record_that_no_tar_can_hold_is_refused(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    write_store([record], tmp_path / "a.lmdb", require_images=False)
    with pytest.raises(ExportError, match=rf"{message}.*choose another format \(--format\)"):
        exported(tmp_path / "a.lmdb")
    assert [path.name for path in tmp_path.iterdir()] == ["a.lmdb"]


def write_shards(folder: Path, *made: dict[str, Any]) -> Path:
    """Write samples with the real writer."""
    folder.mkdir()
    with webdataset.ShardWriter(str(folder / "s-%06d.tar"), maxcount=2, verbose=0) as writer:
        for number, sample in enumerate(made):
            writer.write({"__key__": f"{number:04}", **sample})
    return folder


def test_shards_of_webdataset_are_converted(tmp_path: Path) -> None:
    array = {"x.npy": np.eye(2)}
    made = [{"jpg": photo(n), "cls": n % 2, "json": {"n": n}, "txt": f"caption {n}", **array} for n in range(5)]
    report = convert(write_shards(tmp_path / "shards", *made), tmp_path / "a.lmdb")
    assert (report.records, report.rejected) == (5, 0)
    for n, record in enumerate(records(tmp_path / "a.lmdb")):
        assert (record.name, record.label, record.image) == (f"{n:04}.jpg", n % 2, photo(n))
        assert {*record.fields} == {"json", "txt", "x_npy"}
        assert (record.fields["json"], record.fields["txt"]) == ({"n": n}, f"caption {n}")


def test_export_whose_files_are_sorted_by_webdataset_is_converted(tmp_path: Path) -> None:
    """In the order of their names, ``depth.png`` is before ``fields.json``."""
    depth = picture("PNG", 3)
    shards = write_shards(tmp_path / "a", {"jpg": photo(1), "depth.png": depth, "fields.json": {"n": 1, "depth": None}})
    assert convert(shards, tmp_path / "a.lmdb", file_fields=("depth",)).rejected == 0
    assert [*records(tmp_path / "a.lmdb")[0].fields.items()] == [("n", 1), ("depth", depth)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (b'["cat"]', "is '1', but classes.json allows only integers from 0 to 0"),
        (b"[]", "is 'dog', but classes.json allows only 64-bit integers"),
        (b'{"0": "cat"}', "must be a list of names, got .*; mend it, or move it away"),
        (b"[", "cannot be read"),
    ],
)
def test_wrong_classes_json_is_refused(tmp_path: Path, names: bytes, message: str) -> None:
    shards = write_shards(tmp_path / "shards", {"jpg": photo(1), "cls": "dog" if names == b"[]" else 1})
    plant(shards, {"classes.json": names})
    with pytest.raises(SourceError, match=message):
        convert(shards, tmp_path / "a.lmdb")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (b"[]", "must be an object"),
        (b"{", "is not Extended JSON"),
        (b'{"x": {"$binary": {"base64": "AAAA", "subType": "80"}}}', "is not Extended JSON: DamagedRecordError"),
        (b'{"x": {"$oid": "0123456789abcdef01234567"}}', "has the type bson.objectid.ObjectId"),
        (b'{"x": 9223372036854775808}', "more than 64 bits"),
        (b'{"label": 3}', "'label' is a reserved field"),
        (b'{"name": 3}', "field 'name' must be a str"),
        (b'{"name": "\\ud800"}', "is not valid Unicode"),
        (b'{"resized_from": [1]}', r"must be \(width, height\)"),
        (b'{"txt": 3}', "two files would be the field 'txt'"),
        (bytes(2**24 + 1), "more than 16,777,216"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_sample_with_wrong_fields_is_rejected(tmp_path: Path, fields: bytes, message: str) -> None:
    shards = write_shards(tmp_path / "shards", {"jpg": photo(1), "fields.json": fields, "txt": "x"}, {"jpg": photo(2)})
    report = convert(shards, tmp_path / "a.lmdb")
    assert (report.records, report.rejected) == (1, 1)
    (event,) = events(tmp_path / "a.lmdb")
    assert message.replace("\\", "") in event["reason"]
