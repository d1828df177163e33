"""A copy of selected or relabeled records equals a conversion of the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Record, convert, copy_store, open_store
from dbloader.errors import OptionError, SourceError
from dbloader.records.manifest import Manifest
from dbloader.records.record import encode
from dbloader.stores.open import create_store
from tests.support.conversion import documents, events, records, verified
from tests.support.images import photo, plant, plant_kinds, plant_photos
from tests.support.stores import store_records


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of 30 photographs in three classes, ten of them wide. Other files were repaired or rejected."""
    root = plant_photos(tmp_path / "images", 20, classes=("cat", "dog"))
    plant(root, {f"eel/{number}.jpg": photo(number, 80, 30) for number in range(10)})
    plant_kinds(root, "no end marker", "half", "text")
    convert(root, tmp_path / "all.lmdb")
    return tmp_path / "all.lmdb"


def listing(folder: Path, name: str, *rows: Any) -> Path:
    """Write a listing from lines of text (.txt, .csv) or from objects (.jsonl)."""
    lines = rows if not name.endswith("jsonl") else map(json.dumps, rows)
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / name


def copied(store: Path, **options: Any) -> tuple[list[Record], Manifest]:
    """Copy the store and verify the copy. Return the copy's records and manifest."""
    place = store.with_name("copy.lmdb")
    manifest = copy_store(store, place, overwrite=True, **options)
    assert verified(place) == manifest.digest
    return records(place), manifest


def names(store: Path, **options: Any) -> list[str | None]:
    return [record.name for record in copied(store, **options)[0]]


def converted(tmp_path: Path, chosen: Mapping[str, str | None]) -> tuple[str, tuple[str, ...]]:
    """Convert the store's files again with these labels. Return the digest and the classes."""
    rows = [{"path": name, "label": label} for name, label in chosen.items()]
    made = listing(tmp_path, "again.jsonl", *rows)
    convert(tmp_path / "images", tmp_path / "again.lmdb", listing=made, overwrite=True)
    with open_store(tmp_path / "again.lmdb") as again:
        return again.manifest.digest, again.manifest.classes


def labels_of(store: Path) -> dict[str, str | None]:
    with open_store(store) as opened:
        classes, labels = opened.manifest.classes, opened.column("label").tolist()
        return {name: classes[label] for name, label in zip(opened.names(), labels, strict=True)}


# Selecting records


def test_listings_of_every_kind_select_and_drop_records(store: Path, tmp_path: Path) -> None:
    everything = names(store)
    two = ["cat/0000.jpg", "dog/0001.jpg"]
    at = [everything.index(name) for name in two]
    for chosen in (
        listing(tmp_path, "two.txt", "./dog/0001.jpg", "", *two),
        listing(tmp_path, "two.csv", "path,weight", *(f"{name},1" for name in two)),
        listing(tmp_path, "two.jsonl", *({"name": name, "path": "elsewhere"} for name in two)),
        listing(tmp_path, "at.jsonl", {"index": at[1]}, {"index": at[0], "name": two[0]}),
        listing(tmp_path, "at.csv", "index,name", f"{at[0]},", f"{at[1]},{two[1]}"),
    ):
        assert names(store, select=chosen) == two
        assert names(store, drop=chosen) == [name for name in everything if name not in two]
    report = listing(tmp_path, "report.jsonl", *events(store)[:1])
    three = listing(tmp_path, "three.txt", *two, "cat/0002.jpg")
    assert names(store, select=three, drop=report) == [two[0], "cat/0002.jpg", two[1]]


def test_select_refuses_unknown_names_and_drop_only_warns(store: Path, tmp_path: Path) -> None:
    few = listing(tmp_path, "few.txt", "cat/0000.jpg", "a", "b", "c", "d")
    message = r"few\.txt: 4 rows have no record in .*all\.lmdb: 'a', 'b', 'c', …"
    with pytest.raises(SourceError, match=message):
        copied(store, select=few)
    with pytest.warns(UserWarning, match=message) as caught:
        manifest = copy_store(store, tmp_path / "copy.lmdb", drop=few)
    assert manifest.length == len(names(store)) - 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"index": 32}, r"row 1: .*all.lmdb has no record 32"),
        ({"index": 24 * "0" + "7"}, r"row 1: .*all.lmdb has no record '0{24}7'"),
        ({"index": 0, "name": "x"}, r"row 1: record 0 of .*all.lmdb is 'cat/000.jpg', not 'x': the listing belongs"),
        ({"weight": 1}, "row 1: has no value in a column called name or path or "),
        ({"name": 7}, "row 1: a name must be a text, got 7"),
    ],
)
def test_row_that_identifies_no_record_is_refused(store: Path, tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        copied(store, drop=listing(tmp_path, "bad.jsonl", row))


def test_query_selects_records_from_every_source(store: Path) -> None:
    wide = [name for name in labels_of(store) if name.startswith("eel/")]
    assert names(store, where="width>=80") == names(store, where="width > 40  height==30 ") == wide
    assert names(store, where="width!=80 label<1") == names(store, classes=["cat"])
    assert len(names(store, where="bytes>-1 label<=2")) == 32
    two = store.with_name("two.lmdb")
    with pytest.warns(UserWarning, match="with the same name as a record of an earlier source"):
        copy_store([store, store], two, where="class:eel or name:cat/*")
    with open_store(two) as copy:
        assert [*copy.names()] == 2 * names(store, where="class:eel or class:cat")
    with pytest.raises(OptionError, match=r"query, letter 1: this store has no field 'size'"):
        copied(store, where="size>3")
    with pytest.raises(TypeError, match=r"where must be a query, such as 'score>0\.5', got"):
        copied(store, where=["width<3"])


def test_empty_selection_is_an_error_and_writes_nothing(store: Path) -> None:
    with pytest.raises(OptionError, match=r"there is nothing to copy: no record of .*all\.lmdb matches all conditions"):
        copy_store(store, store.with_name("none.lmdb"), where="width>900")
    assert not [*store.parent.glob("none*")]


def test_selection_keeps_all_classes_and_report_lines_of_its_records(store: Path) -> None:
    before = labels_of(store)
    some, manifest = copied(store, where="width==80")
    assert manifest.classes == ("cat", "dog", "eel")
    assert {record.label for record in some} == {2}
    assert (manifest.outcome, manifest.depths) == ({"repaired": 0, "rejected": 0}, {"8-bit": 10})
    repaired = next(event["name"] for event in events(store) if event["event"] == "repaired")
    _, manifest = copied(store, classes=[str(before[repaired])])
    assert manifest.outcome == {"repaired": 1, "rejected": 0}
    assert [event["name"] for event in events(store.with_name("copy.lmdb"))] == [repaired]


def test_split_copies_each_report_line_once_if_records_have_the_same_name(tmp_path: Path) -> None:
    lines = [{"name": "a.jpg", "event": "repaired", "reason": reason} for reason in ("first", "second")]
    with create_store(tmp_path / "all.lmdb") as writer:
        same_name = [Record("a.jpg", fields={"line": line["reason"]}) for line in lines]
        writer.write(map(encode, same_name), events=lines, outcome={"repaired": 2})
        writer.finish()
    places = [tmp_path / "t.lmdb", tmp_path / "v.lmdb"]
    parts = copy_store(tmp_path / "all.lmdb", places, split=(0.5, 0.5))
    assert [part.outcome for part in parts] == [{"repaired": 1}, {"repaired": 1}]
    for place in places:
        assert [event["reason"] for event in events(place)] == [record.fields["line"] for record in records(place)]


# Labels and classes


def test_copy_of_classes_equals_a_conversion_of_their_folders(store: Path, tmp_path: Path) -> None:
    chosen = {name: label for name, label in labels_of(store).items() if label != "cat"}
    _, manifest = copied(store, classes=["eel", "dog"])
    assert (manifest.digest, manifest.classes) == converted(tmp_path, chosen)
    with pytest.raises(OptionError, match=r"classes \(--class\): no class is called 'cow'; the classes are 'cat', "):
        copied(store, classes=["cow"])


@pytest.mark.parametrize("rename", [{"cat": "zebra"}, {"cat": "dog"}, {"cat": "dog", "dog": "cat"}])
def test_copy_with_renamed_classes_equals_a_conversion_with_these_names(
    store: Path, tmp_path: Path, rename: dict[str, str]
) -> None:
    chosen = {name: rename.get(str(label), label) for name, label in labels_of(store).items()}
    _, manifest = copied(store, rename_classes=rename)
    assert (manifest.digest, manifest.classes) == converted(tmp_path, chosen)
    # all records are copied, so the whole report is copied too
    assert manifest.outcome == {"repaired": 1, "rejected": 2}
    with pytest.raises(OptionError, match=r"rename_classes \(--rename-class\): no class is called 'cow'"):
        copied(store, rename_classes={"cow": "cat"})


def test_copy_relabeled_by_a_listing_equals_a_conversion_with_these_labels(store: Path, tmp_path: Path) -> None:
    chosen = {name: f"group {number % 4}" for number, name in enumerate(labels_of(store))}
    rows = [{"name": name, "label": label} for name, label in reversed(chosen.items())]
    _, manifest = copied(store, labels=listing(tmp_path, "labels.jsonl", *rows))
    assert (manifest.digest, manifest.classes) == converted(tmp_path, chosen)
    rows = [{"name": name, "class": "" if label == "group 3" else label} for name, label in chosen.items()]
    _, manifest = copied(store, labels=listing(tmp_path, "labels.jsonl", *rows))
    wanted = {name: None if label == "group 3" else label for name, label in chosen.items()}
    assert (manifest.digest, manifest.classes) == converted(tmp_path, wanted)


def test_unlisted_records_keep_their_labels(store: Path, tmp_path: Path) -> None:
    wanted: dict[str, str | None] = {**labels_of(store), "cat/0000.jpg": "dog", "cat/0002.jpg": "bee"}
    rows = ["path,label", "cat/0000.jpg,dog", "cat/0002.jpg,bee"]
    _, manifest = copied(store, labels=listing(tmp_path, "labels.csv", *rows))
    assert (manifest.digest, manifest.classes) == converted(tmp_path, wanted)
    some, manifest = copied(store, labels=listing(tmp_path, "labels.csv", "path,label", "cat/000.jpg,1"))
    assert manifest.classes == ("cat", "dog", "eel")  # an integer means the label of a class
    assert [record.label for record in some][:2] == [1, 0]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"name": "cat/0000.jpg", "label": 3}], OptionError, "bad.jsonl: the label 3 has no class"),
        ([{"name": "x", "label": 1}], SourceError, "1 row has no record in"),
        ([{"name": "cat/0000.jpg"}], SourceError, "row 1: has no column called label or class or target"),
        ([{"index": 0, "label": "a"}, {"index": 0, "label": "b"}], SourceError, "row 2: gives a record another label"),
        ([{"index": 0, "label": "a"}, {"index": 1, "label": 1}], SourceError, "the label of row 2 is an integer, but"),
    ],
)
def test_listing_with_wrong_labels_is_an_error(
    store: Path, tmp_path: Path, rows: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        copied(store, labels=listing(tmp_path, "bad.jsonl", *rows))


def test_relabeling_changes_only_the_label_of_a_record(tmp_path: Path) -> None:
    image = np.asfortranarray(np.arange(12, dtype=">u2").reshape(3, 4))
    before = [
        Record("a", 0, b"\xff\xd8", 5, 6, "JPEG", "cut", (7, 8), {"n": 2**40, "list": [[1, 2.5], None]}),
        Record(None, 1, image, fields={"mask": np.zeros((2, 2), bool)}),
        Record("c", None, b"", fields={"label_": 3}),
    ]
    store_records(tmp_path / "a.lmdb", before)
    rows = [{"index": 0, "label": None}, {"index": 1, "label": 7}, {"index": 2, "label": -1}]
    copied(tmp_path / "a.lmdb", labels=listing(tmp_path, "l.jsonl", *rows))
    for record, label in zip(before, (None, 7, -1), strict=True):
        record.label = label
    assert documents(tmp_path / "copy.lmdb") == [encode(record).document(i, 0) for i, record in enumerate(before)]
