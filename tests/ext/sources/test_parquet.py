"""Parquet and Arrow files: places, columns, row groups in any order, and damage."""

from __future__ import annotations

import datetime
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbloader import LMDBDataset, convert, open_store
from dbloader.errors import SourceError
from dbloader.ext.exports.export import export_store
from dbloader.ext.sources import parquet_files
from dbloader.ext.sources.parquet import ParquetSource
from dbloader.ext.sources.recognize import find_tables
from dbloader.sources.base import Entry, Problem, Source
from tests.support.conversion import interrupt, peak_of_conversion, records
from tests.support.hugging_face import run_datasets
from tests.support.images import photo, plant, plant_photos
from tests.support.tallies import contents, entries, only_entries, problems, warnings_of


def table(features: dict[str, Any] | None = None, **columns: Any) -> pa.Table:
    made = pa.table(columns)
    info = {"info": {"features": features}}
    return made if features is None else made.replace_schema_metadata({"huggingface": json.dumps(info)})


def write(path: Path, made: pa.Table | None = None, rows: int = 100, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns) if made is None else made, path, row_group_size=rows)
    return path


def images(count: int, paths: bool = True) -> list[dict[str, Any]]:
    return [{"bytes": photo(n), "path": f"{n}.jpg" if paths else None} for n in range(count)]


def source_of(*paths: Path) -> Source:
    return ParquetSource(paths[0], paths)


MAKE = """
images = [{"bytes": open(f"{n}.jpg", "rb").read(), "path": f"{n}.jpg"} for n in range(7)]
features = Features({"image": Image(), "label": ClassLabel(names=["dog", "cat"]), "text": Value("string"),
    "boxes": List({"x": Value("float64")}), "grid": Array2D((2, 2), "float32"), "width": Value("int64")})
rows = [{"image": image, "label": n % 2 if n else -1, "text": None if n == 3 else f"t{n}", "boxes": [{"x": 0.5}] * n,
    "grid": [[1, 2], [3, n]], "width": 5} for n, image in enumerate(images)]
made = Dataset.from_list(rows, features)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "place"),
    [
        ("made.to_parquet('x.parquet')", "x.parquet"),
        ("DatasetDict(train=made).save_to_disk('disk', num_shards={'train': 3})", "disk"),
    ],
)
def test_files_of_hugging_face_datasets_are_converted(tmp_path: Path, save: str, place: str) -> None:
    plant(tmp_path, {f"{n}.jpg": photo(n) for n in range(7)})
    run_datasets(tmp_path, MAKE + save)
    report = convert(tmp_path / place, tmp_path / "out.lmdb")
    assert report.warnings == (
        "the column 'width' became the field 'width_', because no field can be called 'width'",
        "1 of 7 images have no label; write one for each, or leave them out of the training: where='-label:none'",
    )
    found = records(tmp_path / "out.lmdb")
    assert [(record.name, record.image, record.label) for record in found] == [
        (f"{n}.jpg", photo(n), n % 2 if n else None) for n in range(7)
    ]
    assert [record.fields for record in found] == [
        {"text": None if n == 3 else f"t{n}", "boxes": [{"x": 0.5}] * n, "grid": [[1.0, 2.0], [3.0, n]], "width_": 5}
        for n in range(7)
    ]
    with open_store(tmp_path / "out.lmdb") as store:
        assert store.manifest.classes == ("dog", "cat")


def test_folders_and_ranges_name_the_files_of_a_table(tmp_path: Path) -> None:
    names = [f"train-{n:05}-of-00002.parquet" for n in range(2)]
    shards = [write(tmp_path / "hub" / "data" / name, image=[photo(n)]) for n, name in enumerate(names)]
    plant(tmp_path / "hub", {"README.md": b"read", ".git/x": b""})
    assert find_tables(tmp_path / "hub") == find_tables(tmp_path / "hub" / "data") == shards
    assert find_tables(tmp_path / "hub" / "data" / "train-{00000..00001}-of-00002.parquet") == shards
    shards[0].unlink()
    with pytest.raises(SourceError, match=r"only 1 of 2 files of the split 'train' are there: download the others"):
        find_tables(tmp_path / "hub")


def test_find_tables_ignores_other_places(tmp_path: Path) -> None:
    plant(tmp_path / "images", {"cat/1.jpg": photo(1), "metadata.parquet": b""})
    assert [find_tables(tmp_path / name) for name in ("", "none", "n\0", "images")] == [[]] * 4


def test_several_splits_are_never_mixed(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "valid-00000-of-00001"):
        write(tmp_path / "hub" / f"{name}.parquet", image=[photo(1)])
    write(tmp_path / "plain" / "test.parquet", image=[photo(1)])
    write(tmp_path / "plain" / "train.parquet", image=[photo(1)])
    plant(tmp_path / "disk", {"dataset_dict.json": b'{"splits": ["train", "test"]}', "train/x": b"", "test/x": b""})
    for folder, splits in (("hub", "train, valid"), ("plain", "test, train"), ("disk", "train, test")):
        with pytest.raises(
            SourceError, match=rf"has several splits \({splits}\): convert each by itself: give its fol"
        ):
            convert(tmp_path / folder, tmp_path / "out.lmdb")


def test_columns_are_found_by_their_names_and_types(tmp_path: Path) -> None:
    columns = {
        "id": [1, 2, 3], "img": [photo(n) for n in range(3)], "class": ["dog", "cat", ""], "x.y": [b"a", None, b"c"],
        "when": [datetime.datetime(2020, 1, 2)] * 3, "map": pa.array([[(1, 2)]] * 3, pa.map_(pa.int8(), pa.int8())),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
    }  # fmt: skip
    source = source_of(write(tmp_path / "x.parquet", **columns))
    found = only_entries(source)
    assert source.classes == ("cat", "dog")
    assert [(entry.name, entry.label) for entry in found] == [("x/000000", 1), ("x/000001", 0), ("x/000002", None)]
    assert found[1].fields == {"id": 2, "x_y_": None, "kind": "b"}
    assert contents(source) == columns["img"]
    assert warnings_of(source) == (
        "of the columns 'img', 'x.y', 'img' became the image, and the others became fields",
        "the column 'x.y' became the field 'x_y_', because no field can be called 'x.y'",
        "the column 'when' is left out: no field can have the type timestamp[us]; write it as text to keep it",
        "the column 'map' is left out: no field can have the type map<int8, int8 ('map')>; write it as text to keep it",
        "1 of 3 images have no label; write one for each, or leave them out of the training: where='-label:none'",
    )


def test_class_names_of_fields_survive_copying_and_export(tmp_path: Path) -> None:
    names = {"fine": ["a", "b"], "coarse": ["c"], "tags": ["x", "y"], "parts.kind": ["p", "q"], "old.kind": ["r"]}
    of = {name: {"_type": "ClassLabel", "names": classes} for name, classes in names.items()}
    features = {
        **{name: of[name] for name in ("fine", "coarse")},
        "tags": {"_type": "Sequence", "feature": of["tags"]},
        "parts": {"_type": "List", "feature": {"kind": of["parts.kind"]}},
        "old": {"kind": {"_type": "Sequence", "feature": of["old.kind"]}},
    }
    columns = {"fine": [0, 1], "coarse": [0, 0], "tags": [[1, 0], []], "parts": [[{"kind": 1}], []]}
    made = table(features, image=images(2), old=[{"kind": [0]}, {"kind": []}], **columns)
    write(tmp_path / "x.parquet", made)
    convert(tmp_path / "x.parquet", tmp_path / "first.lmdb")
    convert(tmp_path / "first.lmdb", tmp_path / "copy.lmdb")
    export_store(tmp_path / "copy.lmdb", tmp_path / "out", format="parquet")
    convert(tmp_path / "out", tmp_path / "again.lmdb")
    for place in ("first", "copy", "again"):
        with open_store(tmp_path / f"{place}.lmdb") as store:
            assert store.manifest.classes == ("a", "b")
            assert store.manifest.field_classes == {name: of for name, of in names.items() if name != "fine"}
    (warning,) = export_store(tmp_path / "copy.lmdb", tmp_path / "folder").warnings
    assert warning.endswith("are not written: Parquet keeps them")


@pytest.mark.parametrize(
    ("column", "values", "is_named"),
    [
        ("label", [[1, 0, 1], [], [-1, 2]], True),
        ("tags", [[1, 0], None, [2]], True),
        ("labels", [["b", "a"], [], ["c"]], False),
    ],
)
def test_lists_of_classes_are_the_target(tmp_path: Path, column: str, values: list[Any], is_named: bool) -> None:
    named = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}
    made = table({column: named} if is_named else {}, image=images(3), **{column: values})
    report = convert(write(tmp_path / "x.parquet", made), tmp_path / "x.lmdb", progress=None)
    assert report.warnings == ()
    assert report.understood[1] == f"labels: the column {column!r} (several classes in 'labels')"
    with LMDBDataset(tmp_path / "x.lmdb") as dataset:
        assert dataset.classes == ["a", "b", "c"]
        assert dataset.targets.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    export_store(tmp_path / "x.lmdb", tmp_path / "out", format="parquet")
    assert convert(tmp_path / "out", tmp_path / "again.lmdb", progress=None).digest == report.digest


@pytest.mark.parametrize(
    "others", [{"boxes": [[[1.0, 2.0, 3.0, 4.0]] * 2, []]}, {"words": [["a", "b"], []]}, {"ids": [[1, 2], []]}]
)
@pytest.mark.parametrize("labels", [[[1, 0], []], [["b", "a"], []]])
def test_lists_beside_other_lists_stay_fields_with_their_order(
    tmp_path: Path, others: dict[str, Any], labels: list[Any]
) -> None:
    named = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["a", "b"]}}
    made = table({"labels": named} if labels[0][0] == 1 else {}, image=images(2), labels=labels, **others)
    source = source_of(write(tmp_path / "x.parquet", made))
    assert [entry.fields["labels"] for entry in only_entries(source)] == labels
    assert source.target == ""
    (warning,) = warnings_of(source)
    assert warning == "2 of 2 images have no label: call the column of labels 'label', with integers or names"


def test_captions_and_masks_need_no_labels(tmp_path: Path) -> None:
    made = table(image=images(2), text=["a cat", "a dog"])
    source = source_of(write(tmp_path / "x.parquet", made))
    assert (warnings_of(source), source.understood[1]) == ((), "labels: none")
    mask = {"mask": {"_type": "Image"}, "image": {"_type": "Image"}}
    masked = source_of(write(tmp_path / "y.parquet", table(mask, image=images(2), mask=images(2))))
    assert ["have no label" in warning for warning in warnings_of(masked)] == [False]
    other = source_of(write(tmp_path / "z.parquet", table(image=images(2), breed=["pug", "pug"])))
    assert ["have no label" in warning for warning in warnings_of(other)] == [True]


def test_warning_about_two_labels_names_the_way_to_train_on_the_other(tmp_path: Path) -> None:
    kinds = {name: {"_type": "ClassLabel", "names": ["a", "b"]} for name in ("fine_label", "coarse_label")}
    place = write(tmp_path / "x.parquet", table(kinds, image=images(2), fine_label=[0, 1], coarse_label=[1, 0]))
    (warning,) = source_of(place).warnings
    assert warning.endswith("LMDBDataset(place, target='coarse_label') trains on another")


def test_table_about_image_files_is_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    place = write(tmp_path / "00000.parquet", table(url=["http://a"], caption=["a"], key=["0"]))
    with pytest.raises(SourceError, match="if the images are files, convert only their folder"):
        source_of(place)


def test_class_list_beside_an_embedding_is_the_target(tmp_path: Path) -> None:
    labels = pa.array([["b"], ["a"]], pa.large_list(pa.large_string()))  # as polars writes lists
    made = table(image=images(2), labels=labels, vector=[[0.5], [2.0]])
    assert source_of(write(tmp_path / "x.parquet", made)).target == "labels"


@pytest.mark.parametrize(
    ("values", "missing", "warns"),
    [([1.0, None, 0.0], 1, True), ([1.0, None, 0.5], 1, False), ([None] * 3, 3, False)],
)
def test_whole_numbers_with_gaps_are_a_warning(
    tmp_path: Path, values: list[float | None], missing: int, warns: bool
) -> None:
    made = table(image=images(3), label=pa.array(values, pa.float64()))
    (warning,) = warnings_of(source_of(write(tmp_path / "x.parquet", made)))
    assert warning.startswith(f"{missing} of 3 images have no label")
    assert ("if they are classes, write them as integers" in warning) == warns


def test_unknown_class_in_a_list_is_a_problem(tmp_path: Path) -> None:
    named = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": ["a"]}}
    made = table({"label": named}, image=images(2), label=[[0], [0, 1]])
    [(name, reason)] = problems(source_of(write(tmp_path / "x.parquet", made)))
    assert (name, reason) == ("1.jpg", "its label is 1, not from 0 to 0")


@pytest.mark.parametrize(("column", "field"), [("label", "target"), ("target", "target")])
def test_floats_are_the_target(tmp_path: Path, column: str, field: str) -> None:
    made = table(image=images(2), **{column: pa.array([0.5, 2.0], pa.float32())})
    report = convert(write(tmp_path / "x.parquet", made), tmp_path / "x.lmdb", progress=None)
    assert report.warnings == ()
    with LMDBDataset(tmp_path / "x.lmdb", target=field) as dataset:
        assert dataset.targets.tolist() == [0.5, 2.0]
    with LMDBDataset(tmp_path / "x.lmdb") as dataset:
        assert dataset[1][1] == 2.0


@pytest.mark.parametrize("is_list", [False, True])
def test_detection_objects_become_boxes(tmp_path: Path, is_list: bool) -> None:
    """The objects are a struct of lists, as in CPPE-5, or a list of structs, as List of datasets 4 writes them."""
    category = {"_type": "ClassLabel", "names": ["Coverall", "Mask"]}
    rows: list[Any] = [
        {"id": [7, 8], "bbox": [[1.0, 2, 3, 4], [10, 20, 30, 10]], "category": [1, 0]},
        {"id": [], "bbox": [], "category": []},
        {"id": [9], "bbox": [[1, 2, 300, 4]], "category": [1]},
        {"id": [9], "bbox": [[1, 2, 3, 4]], "category": [2]},
        {"id": [9], "bbox": [[1, 2, 3, 4]], "category": [None]},
    ]
    features: Any = {"category": {"_type": "Sequence", "feature": category}}
    kind: Any = pa.struct([("id", pa.list_(pa.int64())), ("bbox", pa.list_(pa.list_(pa.float32()))),
                           ("category", pa.list_(pa.int64()))])  # fmt: skip
    if is_list:
        rows = [[dict(zip(row, values, strict=True)) for values in zip(*row.values(), strict=True)] for row in rows]
        kind = pa.list_(pa.struct([(field.name, field.type.value_type) for field in kind]))
        features = {"_type": "List", "feature": {"category": category}}
    made = table({"objects": features}, image=images(5), objects=pa.array(rows, kind))
    report = convert(write(tmp_path / "x.parquet", made), tmp_path / "x.lmdb")
    assert report.warnings[0].startswith("the column 'objects' became 'boxes' and 'box_labels': its 'bbox' was read as")
    with open_store(tmp_path / "x.lmdb") as store:
        assert (store.manifest.classes, store.manifest.field_classes) == (("Coverall", "Mask"), {})
        reasons = {event["name"]: event["reason"] for event in store.events()}
        first, second = store
    assert first.fields["boxes"].tolist() == [[1, 2, 4, 6], [10, 20, 40, 30]]
    assert (first.fields["box_labels"].tolist(), first.fields["objects"]) == ([1, 0], {"id": [7, 8]})
    assert second.fields["boxes"].shape == (0, 4)
    assert "is not within its 40 x 30 pixels" in reasons["2.jpg"]
    assert reasons["3.jpg"] == "its objects cannot be read: an object has class 2, but classes are 0 to 1"
    assert reasons["4.jpg"] == "its objects cannot be read: an object has no class"


def test_label_without_a_class_is_a_problem(tmp_path: Path) -> None:
    made = table({"label": {"_type": "ClassLabel", "names": ["a"]}}, image=images(3), label=[0, -1, 1])
    source = source_of(write(tmp_path / "x.parquet", made))
    first, second, problem = source.entries()
    assert isinstance(first, Entry)
    assert isinstance(second, Entry)
    assert (first.label, second.label) == (0, None)
    assert problem == ("2.jpg", "its label is 1, not from 0 to 0")


def test_label_changed_after_opening_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", image=images(1), label=["cat"])
    source = source_of(path)
    write(path, image=images(1), label=["cow"])
    with pytest.raises(SourceError, match=r"x\.parquet: was changed since it was first read$"):
        list(source.entries())


def test_repeated_paths_get_names_that_begin_with_file_and_row(tmp_path: Path) -> None:
    source = source_of(write(tmp_path / "x.parquet", image=[images(1)[0]] * 2 + images(2)[1:] + images(1, paths=False)))
    names = [entry.name for entry in entries(source)]
    assert names == ["x/000000/0.jpg", "x/000001/0.jpg", "x/000002/1.jpg", "x/000003"]
    assert warnings_of(source)[0] == "some images have the same path, so the names of records begin with file and row"


def test_table_may_name_image_files_below_its_folder(tmp_path: Path) -> None:
    plant(tmp_path / "a", {"b/1.jpg": photo(1)})
    plant(tmp_path, {"secret.jpg": b"x"})
    paths = ["b/1.jpg", "b/2.jpg", "../secret.jpg", f"{tmp_path}/secret.jpg"]
    structs = [{"bytes": None, "path": path} for path in paths]
    way = "embed the images with embed_table_storage of Hugging Face's datasets (docs/parquet.md)"
    wrong = f"which must be relative and below {tmp_path / 'a'}"
    for kind, column in (("structs", [*structs, None]), ("texts", [*paths, None])):
        made = (
            pa.table({"image": pa.array(column, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))})
            if kind == "structs"
            else pa.table({"image": column})
        )
        source = source_of(write(tmp_path / "a" / f"{kind}.parquet", made))
        first, *problems = contents(source)
        assert first == photo(1)
        assert problems == [
            ("b/2.jpg", "cannot be read: No such file or directory"),
            *((path, f"has only a path, {path!r}, {wrong}: {way}") for path in paths[2:]),
            (f"{kind}/000004", "has neither bytes nor a path"),
        ]


@pytest.mark.parametrize(
    ("columns", "which"),
    [
        ({"a": [1], "b": ["x"]}, "the columns are 'a', 'b'; call the right one 'image'; if the images are files, .*"),
        ({"a": [b"1"], "b": [b"2"]}, "it may be any of 'a', 'b'; call the right one 'image'"),
    ],
)
def test_table_without_an_unambiguous_image_column_is_refused(tmp_path: Path, columns: Any, which: str) -> None:
    message = f"x.parquet: cannot tell which column is the image: {which}$"
    with pytest.raises(SourceError, match=message):
        source_of(write(tmp_path / "x.parquet", **columns))


def test_shards_with_different_columns_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet", image=[b"1"], x=[1])
    with pytest.raises(SourceError, match=r"2\.parquet: has other columns or classes than .*1\.parquet: convert it by"):
        source_of(first, write(tmp_path / "2.parquet", image=[b"1"], x=["1"]))


@pytest.mark.slow
def test_documented_recipe_embeds_images(tmp_path: Path) -> None:
    plant(tmp_path / "images", {f"{n}.jpg": photo(n) for n in range(3)})
    page = (Path(__file__).parents[3] / "docs" / "parquet.md").read_text()
    (chain,) = (block for block in page.split("```") if "embed_table_storage" in block and block.startswith("python"))
    make = "dataset = Dataset.from_dict({'image': [f'images/{n}.jpg' for n in range(3)]}).cast_column('image', Image())"
    run_datasets(tmp_path, make + chain.removeprefix("python"))
    convert(tmp_path / "train.parquet", tmp_path / "out.lmdb")
    assert [record.image for record in records(tmp_path / "out.lmdb")] == [photo(n) for n in range(3)]


def test_row_groups_of_any_size_give_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plant_photos(tmp_path / "images", 60)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    column = [{"bytes": (folder / name).read_bytes(), "path": name} for name in names]
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    made = table(features, image=column, label=[int("dog" in name) for name in names])
    expected = convert(folder, tmp_path / "a.lmdb").digest
    shuffled = convert(folder, tmp_path / "b.lmdb", shuffle_seed=1).digest
    for large, rows in ((2**30, 7), (2**16, 60)):  # the second row group is decoded in pieces
        monkeypatch.setattr(parquet_files, "_KEPT", large)
        monkeypatch.setattr(parquet_files, "_PIECE", large // 16)
        write(tmp_path / "x.parquet", made, rows=rows)
        assert convert(tmp_path / "x.parquet", tmp_path / "c.lmdb", overwrite=True, workers=3).digest == expected
        interrupt(tmp_path / "x.parquet", tmp_path / "d.lmdb", 32, shuffle_seed=1, overwrite=True)
        report = convert(tmp_path / "x.parquet", tmp_path / "d.lmdb", shuffle_seed=1, overwrite=True, resume=True)
        assert report.digest == shuffled


def test_many_large_row_groups_in_a_random_order_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_KEPT", 1)
    write(tmp_path / "x.parquet", image=images(240), rows=80)  # more row groups than the two workers read at once
    with pytest.raises(SourceError, match=r"too large for a random order: leave shuffle_seed \(--shuffle-seed\) out"):
        convert(tmp_path / "x.parquet", tmp_path / "out.lmdb", shuffle_seed=1)
    assert convert(tmp_path / "x.parquet", tmp_path / "out.lmdb", workers=2, overwrite=True).records == 240


@pytest.mark.slow
def test_large_row_group_needs_bounded_memory(tmp_path: Path) -> None:
    data = photo(1, 700, 500)
    column = [data + n.to_bytes(4, "big") for n in range(4000)]
    assert sum(map(len, column)) > 300e6
    options = {"row_group_size": 4000, "use_dictionary": False, "write_batch_size": 8}  # pages of about 1 MB
    pq.write_table(pa.table({"image": column}), tmp_path / "x.parquet", **options)
    contents(source_of(write(tmp_path / "small.parquet", image=column[:9])))  # imports modules before the measurement
    assert peak_of_conversion(tmp_path / "x.parquet", tmp_path / "out.lmdb", check="none") < 200e6


def test_truncated_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", image=images(9))
    data = path.read_bytes()
    for length in (0, 3, 100, len(data) - 100, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(SourceError, match=r"x\.parquet: cannot be read: [^\n]+$"):
            source_of(path)


def test_truncated_arrow_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    made = pa.table({"image": [photo(n) for n in range(9)]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
        writer.write_table(made, max_chunksize=2)
    assert len(contents(source_of(path))) == 9
    data = path.read_bytes()
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(SourceError, match=r"x\.arrow: cannot be read: "):
            source_of(path)
    path.write_bytes(data[:-8])  # at the end of a record batch
    with pytest.raises(SourceError, match="is cut short: copy it again"):
        source_of(path)


def test_damaged_row_group_loses_only_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    made = pa.table({"image": [bytes([n]) * 1000 for n in range(40)], "x": [b"field %d" % n * 100 for n in range(40)]})
    pq.write_table(made, path, row_group_size=10, compression="none", use_dictionary=False, write_page_checksum=True)
    data = path.read_bytes()
    for byte, lost in ((bytes([15]) * 1000, "image"), (b"field 25" * 100, "x")):
        path.write_bytes(data.replace(byte, b"?" + byte[1:]))
        source = source_of(path)
        found = contents(source)
        if lost == "image":
            kept = [bytes([n]) * 1000 for n in range(40) if n // 10 != 1]
            assert [item for item in found if isinstance(item, bytes)] == kept
            assert sum("CRC checksum" in item.reason for item in found if isinstance(item, Problem)) == 10
        else:
            (problem,) = problems(source)
            assert problem.name == "x, rows 20 to 29"
            assert len(found) == 30


def test_random_damage_raises_only_source_errors(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}
    made = table(features, image=images(6), label=[0, 1] * 3, s=["x"] * 6)
    path = write(tmp_path / "x.parquet", made, rows=2)
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), len(data) // 20):
        data[at] ^= 0xFF
        path.write_bytes(data)
        data[at] ^= 0xFF
        with suppress(SourceError):
            contents(source_of(path))
