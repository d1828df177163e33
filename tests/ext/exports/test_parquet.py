"""Hugging Face's datasets can read exports as Parquet, and `convert` makes the same store from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dbloader import ImageFormat, Record, convert, open_store
from dbloader.errors import ConversionError, ExportError, SourceError
from dbloader.ext.exports import parquet
from dbloader.ext.exports.export import export_store
from tests.contracts.records import stored
from tests.support.conversion import records
from tests.support.hugging_face import run_datasets
from tests.support.images import photo, plant_photos
from tests.support.stores import store_records

CLASSES = ("cat", 'a "dög"/\n', "")


def store_of(place: Path, *made: Record) -> str:
    return store_records(place, made, classes=CLASSES).digest


def record(number: int, **values: Any) -> Record:
    standard = {"label": number % 3, "image": photo(number), "width": 40, "height": 30, "format": "JPEG"}
    return Record(**{"name": f"a/ü {number}.jpg", **standard, **values})


def varied(number: int) -> Record:
    fields: dict[str, Any] = {
        "int": number - 3, "float": -0.0 if number else float("inf"), "text": f"ü\0{number}", "yes": number > 2,
        "bytes": b"\xff" * number, "none": None, "empty": [], "nulls": [None],
        "boxes": [{"x": 1.5, "on": None, "tags": ["a"] * n} for n in range(number)],
        "some": None if number == 1 else {"a": 2**62, "b": [[number]]},
        **({"rare": "here"} if number % 4 == 1 else {}), "last": 1.0,
    }  # fmt: skip
    return record(
        number,
        name=None if number == 5 else f"c/{number}.jpg",
        label=None if number == 4 else number % 3,
        resized_from=(80, 60) if number == 2 else None,
        fields=fields,
    )


def exported(tmp_path: Path) -> Path:
    export_store(tmp_path / "s.lmdb", tmp_path / "out", format="parquet")
    return tmp_path / "out"


def test_converting_the_export_gives_the_same_store(tmp_path: Path) -> None:
    damaged = record(9, image=photo(1)[:-300], damaged="is cut short", fields=varied(9).fields)
    digest = store_of(tmp_path / "s.lmdb", *map(varied, range(9)), damaged)
    report = convert(exported(tmp_path), tmp_path / "again.lmdb")
    assert records(tmp_path / "again.lmdb") == [*records(tmp_path / "s.lmdb")]
    assert report.digest == digest
    with open_store(tmp_path / "again.lmdb") as store:
        assert store.manifest.classes == CLASSES


def test_image_folder_survives_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = convert(plant_photos(tmp_path / "images", 50), tmp_path / "s.lmdb", images=ImageFormat(short_side=20))
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 7)
    monkeypatch.setattr(parquet, "_SHARD_BYTES", 10_000)
    files = sorted(path.name for path in (exported(tmp_path) / "data").iterdir())
    assert files == [f"train-{number:05}-of-{len(files):05}.parquet" for number in range(len(files))]
    assert len(files) > 1
    assert pq.read_metadata(tmp_path / "out" / "data" / files[0]).row_group(0).num_rows == 7
    assert convert(tmp_path / "out", tmp_path / "again.lmdb", workers=3).digest == first.digest


READ = """
found = load_dataset("parquet", data_files="out/data/*.parquet")["train"]
same = load_dataset("out")["train"]
assert found.features == same.features and same[1] == found[1]
features = {name: str(feature) for name, feature in found.features.items()}
row = {name: value for name, value in found[1].items() if name not in ("image", "bytes")}
print(json.dumps([found.features["label"].names, features, row, found[1]["image"].size, found[1]["image"].format,
    found.cast_column("image", Image(decode=False))[1]["image"]["path"], found["label"][:6]]))
"""


@pytest.mark.slow
def test_datasets_reads_images_classes_and_fields(tmp_path: Path) -> None:
    made = [*map(varied, range(9))]
    for number, each in enumerate(made):
        each.fields["array"] = np.ones((number, 2), np.float32)
    store_of(tmp_path / "s.lmdb", *made)
    exported(tmp_path)
    names, features, row, *image = json.loads(run_datasets(tmp_path, READ))
    assert names == [*CLASSES]
    assert (features["int"], features["bytes"]) == ("Value('int64')", "Value('binary')")
    assert features["boxes"] == "List({'x': Value('float64'), 'on': Value('string'), 'tags': List(Value('string'))})"
    assert image == [[40, 30], "JPEG", "c/1.jpg", [0, 1, 2, 0, None, 2]]
    assert features["array"] == "List(List(Value('float32')))"
    expected = {**varied(1).fields, "array": [[1.0, 1.0]]}
    del expected["bytes"]
    assert row == {**expected, "label": 1, "resized_from": None}


def test_export_counts_the_records_that_convert_would_change(tmp_path: Path) -> None:
    made = [
        record(0, image=None, fields={"a": 1, "b": 1}),
        record(1, image=b"no image", format=None, fields={"b": 2, "a": 2}),
        Record(fields={"a": 3}),
    ]
    store_of(tmp_path / "s.lmdb", *made)
    assert export_store(tmp_path / "s.lmdb", tmp_path / "out", format="parquet").warnings == (
        "2 records without an image: convert leaves them out",
        "1 record in no known image format: convert --check none keeps them",
        "1 record with a different order of fields: convert gives all records the same order",
    )
    assert convert(tmp_path / "out", tmp_path / "again.lmdb", check="none").rejected == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 1.5], "field 'x' is double here, but int64 in earlier values"),
        ([["a"], [b"a"]], "field 'x' is binary here, but string in earlier values"),
        ([{"a": 1}, {"b": 1}], r"field 'x' is struct<b: int64> here, but struct<a: int64> in earlier values"),
        ([{}, {}], "field 'x' is an empty dict"),
        ([np.zeros(3), 1], "field 'x' is int64 here, but an array of float64 with 1 axes in earlier values"),
        ([np.zeros(1), np.zeros((1, 1))], "field 'x' is an array of float64 with 2 axes here, but an array of float64"),
        (
            [np.zeros(1), np.zeros(1, "f4")],
            "field 'x' is an array of float32 with 1 axes here, but an array of float64",
        ),
        ([[1.0], np.zeros(1)], "field 'x' is an array of float64 with 1 axes here, but list<item: double> in earlier"),
        ([np.zeros(1, ">f4")], "field 'x' is an array of >f4"),
        ([np.zeros((2, 3)).T], "field 'x' is an array in Fortran's order"),
        ([[np.zeros(1)]], "field 'x' holds a ndarray"),
    ],
)
def test_field_that_no_column_can_hold_is_refused(tmp_path: Path, values: list[Any], message: str) -> None:
    store_of(tmp_path / "s.lmdb", *(record(n, fields={"x": value}) for n, value in enumerate(values)))
    with pytest.raises(ExportError, match=rf"record [01] \(a/ü [01]\.jpg\): its {message}.*, which a column of Parq"):
        exported(tmp_path)
    assert not (tmp_path / "out").exists()


def test_field_types_of_records_outside_the_query_do_not_matter(tmp_path: Path) -> None:
    store_of(tmp_path / "s.lmdb", *(record(n, fields={"x": value}) for n, value in enumerate((1, 1.5, 2.5))))
    assert export_store(tmp_path / "s.lmdb", tmp_path / "out", format="parquet", where='-name:"*0.jpg"').records == 2
    assert convert(tmp_path / "out", tmp_path / "again.lmdb").records == 2


ARRAYS = [np.dtype(name) for name in "bool int8 int16 int32 int64 uint8 uint64 float16 float64".split()]  # noqa: SIM905


def with_boxes(number: int) -> Record:
    fields: dict[str, Any] = {
        "boxes": np.arange(4 * number, dtype=np.float32).reshape(-1, 4) + 0.1,  # the first record has no value
        "box_labels": np.arange(number),
        "ragged": np.zeros((2, number % 3, 5), bool),
        "fixed": np.full((0, 3), 1, np.int16),
        "scalar": np.array(number, np.uint8),
        "nan": np.array([0x7FC12345, 0xFF800001], np.uint32).view(np.float32),
        "some": None if number == 2 else np.array([[b"ab"[number % 2]]]),
        **{str(dtype): np.arange(number * 2).reshape(number, 1, 2).astype(dtype) for dtype in ARRAYS},
        **({"rare": np.ones(2)} if number % 2 else {}),
    }
    return record(number, fields=fields)


def test_arrays_survive_export_and_conversion_byte_for_byte(tmp_path: Path) -> None:
    digest = store_of(tmp_path / "s.lmdb", *map(with_boxes, range(5)))
    schema = pq.read_schema(next((exported(tmp_path) / "data").iterdir()))
    rules = json.loads(schema.metadata[b"dbloader"])["arrays"]
    assert rules["boxes"] == {"dtype": "float32", "shape": [None, 4]}
    assert rules["fixed"] == {"dtype": "int16", "shape": [0, 3]}
    assert convert(tmp_path / "out", tmp_path / "again.lmdb").digest == digest
    with open_store(tmp_path / "s.lmdb") as one, open_store(tmp_path / "again.lmdb") as other:
        assert stored(one, range(5)) == stored(other, range(5))


def test_array_whose_shape_lists_would_lose_is_refused(tmp_path: Path) -> None:
    arrays = (np.zeros((0, 2)), np.zeros((1, 3)))
    store_of(tmp_path / "s.lmdb", *(record(n, fields={"x": value}) for n, value in enumerate(arrays)))
    with pytest.raises(ExportError, match=r"record 0 .*'x' is empty, and Parquet would lose its shape \(0, 2\)"):
        exported(tmp_path)


def change_rule(tmp_path: Path, rule: Any) -> None:
    """Replace the rule of the arrays in the column ``x`` of an export."""
    (path,) = (exported(tmp_path) / "data").iterdir()
    made, own = pq.read_table(path), json.dumps({"arrays": {"x": rule}})
    pq.write_table(made.replace_schema_metadata({**made.schema.metadata, b"dbloader": own.encode()}), path)


@pytest.mark.parametrize(
    "rule", [None, {"dtype": "O", "shape": [1]}, {"dtype": "int64", "shape": [-1]}, {"dtype": "int64", "shape": [1, 1]}]
)
def test_metadata_with_a_wrong_dtype_or_shape_for_a_column_is_refused(tmp_path: Path, rule: Any) -> None:
    store_of(tmp_path / "s.lmdb", record(0, fields={"x": np.arange(1)}))
    change_rule(tmp_path, rule)
    with pytest.raises(SourceError, match=r"its metadata cannot be read: column 'x': .* does not describe its arrays"):
        convert(tmp_path / "out", tmp_path / "again.lmdb")


def test_array_of_another_shape_than_its_column_states_is_a_problem(tmp_path: Path) -> None:
    store_of(tmp_path / "s.lmdb", record(0, fields={"x": np.arange(3)}), record(1, fields={"x": np.arange(3)}))
    change_rule(tmp_path, {"dtype": "int64", "shape": [2]})
    with pytest.raises(ConversionError, match=r"rows 0 to 1: cannot be read: an array does not have the shape \(2,\)"):
        convert(tmp_path / "out", tmp_path / "again.lmdb")
