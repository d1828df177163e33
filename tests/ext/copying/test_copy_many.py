"""Merges and splits contain each record exactly once, even after an interruption."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbloader import Listing, LMDBDataset, Record, convert, copy_store, open_store, write_store
from dbloader.errors import DamagedRecordError, OptionError, StoreExistsError
from dbloader.stores.lmdb.keys import RECORDS, record_key
from tests.ext.copying.test_copy_store import killed, make
from tests.support.conversion import documents, events, records, verified
from tests.support.images import photo, plant, plant_photos
from tests.support.lmdb_files import tamper_with_records, value_at
from tests.support.stores import store_records

# Python >= 3.12 warns about forks of a process with threads. MongoDB clients have threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def write(place: Path, labels: Sequence[int | None], classes: tuple[str, ...] = (), prefix: str = "") -> Path:
    store_records(place, (Record(f"{prefix}{number}", label) for number, label in enumerate(labels)), classes=classes)
    return place


def write_boxes(place: Path, labels: Any, classes: tuple[str, ...]) -> Path:
    fields = {"a": 2.5, "box_labels": labels, "z": [1, "b"]}
    store_records(place, [Record(place.name, 1 if classes else None, b"image", fields=fields)], classes=classes)
    return place


def named(place: Path) -> list[tuple[str | None, str | None]]:
    """Return the name and the class name of each record."""
    with open_store(place) as store:
        classes = store.manifest.classes
        return [(record.name, None if record.label is None else classes[record.label]) for record in store]


def test_merged_stores_equal_one_conversion(tmp_path: Path) -> None:
    first = plant_photos(tmp_path / "a", 20, ("b", "d"))
    second = plant_photos(tmp_path / "b", 20, ("a", "d"))
    plant(first, {"b/cut.jpg": photo()[:-2], "d/text.jpg": b"text"})
    for name, root in (("a", first), ("b", second)):
        convert(root, tmp_path / f"{name}.lmdb")
    with pytest.warns(UserWarning, match=r"^10 records with the same name as .* earlier source: 'd/0001.jpg', "):
        merged = copy_store([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "ab.lmdb")
    assert verified(tmp_path / "ab.lmdb") == merged.digest
    assert merged.classes == ("a", "b", "d")
    assert named(tmp_path / "ab.lmdb") == [*named(tmp_path / "a.lmdb"), *named(tmp_path / "b.lmdb")]
    images = [[record.image for record in records(tmp_path / name)] for name in ("ab.lmdb", "b.lmdb")]
    assert images[0][-20:] == images[1]
    assert events(tmp_path / "ab.lmdb") == [*events(tmp_path / "a.lmdb"), *events(tmp_path / "b.lmdb")]
    assert merged.outcome == {"repaired": 1, "rejected": 1}
    assert merged.depths == {"8-bit": merged.length}
    assert merged.source["path"] == f"{tmp_path / 'a.lmdb'}, {tmp_path / 'b.lmdb'}"
    rows = "".join(f"{place}/{name},{label}\n" for place in "ab" for name, label in named(tmp_path / f"{place}.lmdb"))
    (tmp_path / "all.csv").write_text(f"path,class\n{rows}")
    again = convert(tmp_path, tmp_path / "again.lmdb", listing=tmp_path / "all.csv")
    with open_store(tmp_path / "again.lmdb") as one, open_store(tmp_path / "ab.lmdb") as other:
        assert one.manifest.classes == other.manifest.classes
        assert one.column("label").tolist() == other.column("label").tolist()
        assert again.records == len(other)


def test_unsorted_classes_are_merged_in_source_order(tmp_path: Path) -> None:
    one = write(tmp_path / "1.lmdb", [0, 1, None], ("dog", "cat"), "a")
    two = write(tmp_path / "2.lmdb", [0, 1], ("ant", "cat"), "b")
    empty = write(tmp_path / "3.lmdb", [None], (), "c")
    assert copy_store([one, two, empty], tmp_path / "out.lmdb").classes == ("dog", "cat", "ant")
    assert [label for _, label in named(tmp_path / "out.lmdb")] == ["dog", "cat", None, "ant", "cat", None]


def test_labels_of_different_kinds_are_refused_with_a_remedy(tmp_path: Path) -> None:
    one = write(tmp_path / "1.lmdb", [0, 1], ("dog", "cat"), "a")
    two = write(tmp_path / "2.lmdb", [0, 1], (), "b")
    message = r"1\.lmdb has class names, but the labels of .*2\.lmdb are integers: give .* in a listing \(--labels\)"
    with pytest.raises(OptionError, match=message):
        copy_store([one, two], tmp_path / "out.lmdb")
    (tmp_path / "labels.csv").write_text("name,label\nb0,cat\nb1,dog\na0,dog\na1,cat\n")
    copy_store([one, two], tmp_path / "out.lmdb", labels=tmp_path / "labels.csv")
    assert named(tmp_path / "out.lmdb") == [("a0", "dog"), ("a1", "cat"), ("b0", "cat"), ("b1", "dog")]
    twice = write(tmp_path / "4.lmdb", [0, 1], ("crane", "crane"), "d")
    with pytest.raises(OptionError, match=r"4\.lmdb: two classes are called 'crane'"):
        copy_store([one, twice], tmp_path / "out.lmdb", overwrite=True)


@pytest.mark.parametrize("labels", [np.array([0, 1, 1], np.uint8), [0, 1, 1]], ids=str)
def test_box_labels_change_like_record_labels(tmp_path: Path, labels: Any) -> None:
    one = write_boxes(tmp_path / "1.lmdb", labels, ("cat", "dog"))
    two = write_boxes(tmp_path / "2.lmdb", labels, ("ant", "cat"))

    def found(source: Any, **options: Any) -> list[list[str]]:
        copy_store(source, tmp_path / "out.lmdb", overwrite=True, **options)
        with open_store(tmp_path / "out.lmdb") as store:
            assert store.verify()
            for record in store:
                kept = {**record.fields, "box_labels": 0}
                assert (record.image, kept) == (b"image", {"a": 2.5, "box_labels": 0, "z": [1, "b"]})
            names = store.manifest.classes
            return [[names[label] for label in record.fields["box_labels"]] for record in store]

    assert found([one, two]) == [["cat", "dog", "dog"], ["ant", "cat", "cat"]]
    assert found([one, two], rename_classes={"ant": "zebra"}) == [["cat", "dog", "dog"], ["zebra", "cat", "cat"]]
    assert found(one, rename_classes={"cat": "dog", "dog": "cat"}) == [["dog", "cat", "cat"]]
    (tmp_path / "labels.csv").write_text("name,class\n1.lmdb,ant\n2.lmdb,zebra\n")
    with pytest.raises(OptionError, match=r"1\.lmdb: record 0 .* box with the label 0 \(cat\), .* not a class of the"):
        found([one, two], labels=tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("name,class\n1.lmdb,ant\n")
    assert found([one, two], labels=tmp_path / "labels.csv") == [["cat", "dog", "dog"], ["ant", "cat", "cat"]]
    with pytest.raises(OptionError, match=r"box with the label 0 \(ant\), .* not a class of the copy"):
        found(two, classes=["cat"])


def test_several_classes_change_like_one_class(tmp_path: Path) -> None:
    plant(tmp_path / "images", {f"{name}.jpg": photo(n) for n, name in enumerate("xy")})
    for name, labels in (("x", "cat|dog"), ("y", "ant|cat")):
        (tmp_path / f"{name}.csv").write_text(f"path,label\n{name}.jpg,{labels}\n")
        listing = Listing(tmp_path / f"{name}.csv", separator="|")
        convert(tmp_path / "images", tmp_path / f"{name}.lmdb", listing=listing, progress=None)
    copy_store([tmp_path / "x.lmdb", tmp_path / "y.lmdb"], tmp_path / "merged.lmdb")
    copy_store(tmp_path / "merged.lmdb", tmp_path / "renamed.lmdb", rename_classes={"ant": "cow", "cat": "pet"})
    copy_store(tmp_path / "merged.lmdb", tmp_path / "joined.lmdb", rename_classes={"ant": "pet", "cat": "pet"})
    expected: list[tuple[str, list[str], list[list[int]]]] = [
        ("merged", ["ant", "cat", "dog"], [[0, 1, 1], [1, 1, 0]]),
        ("renamed", ["cow", "dog", "pet"], [[0, 1, 1], [1, 0, 1]]),
        ("joined", ["dog", "pet"], [[1, 1], [0, 1]]),
    ]
    for place, classes, targets in expected:
        with LMDBDataset(tmp_path / f"{place}.lmdb") as dataset:
            assert (dataset.classes, dataset.targets.tolist()) == (classes, targets)


def test_merged_box_labels_without_classes_get_no_classes(tmp_path: Path) -> None:
    one = write_boxes(tmp_path / "1.lmdb", [1, 0], ("cat", "dog"))
    bare, names = (write_boxes(tmp_path / f"{labels}.lmdb", labels, ()) for labels in ([0, 1], ["cat", "cow"]))
    with pytest.raises(OptionError, match=r"has a box with the label 0 \(without a class\), .* give all sources"):
        copy_store([one, bare], tmp_path / "out.lmdb")
    copy_store([one, names], tmp_path / "out.lmdb")
    assert [record.fields["box_labels"] for record in records(tmp_path / "out.lmdb")] == [[1, 0], ["cat", "cow"]]
    copy_store(bare, tmp_path / "same.lmdb", where="bytes>0")
    assert documents(tmp_path / "same.lmdb") == documents(bare)


# Splits


@pytest.mark.parametrize("fractions", [(0.9, 0.1), (0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3)])
def test_split_divides_all_records_and_keeps_label_proportions(tmp_path: Path, fractions: tuple[float, ...]) -> None:
    # labels with 90 records and with 2 records
    labels = [number % 10 if number < 900 else 10 + number % 50 for number in range(1000)]
    write(tmp_path / "all.lmdb", labels)
    places = [tmp_path / f"{number}.lmdb" for number in range(len(fractions))]
    parts = copy_store(tmp_path / "all.lmdb", places, split=fractions, seed=1)
    assert all(abs(part.length - fraction * 1000) < 1 for part, fraction in zip(parts, fractions, strict=True))
    found = [[int(record.name or "") for record in records(place)] for place in places]
    assert sorted(number for part in found for number in part) == [*range(1000)]
    assert all(part == sorted(part) for part in found)
    for part, fraction in zip(found, fractions, strict=True):
        counts = Counter(labels[number] for number in part)
        assert all(abs(counts[label] - fraction * (90 if label < 10 else 2)) <= 2 for label in range(60))
    again = [place.with_suffix(".again") for place in places]
    for seed in (1, 2):
        others = copy_store(tmp_path / "all.lmdb", again, split=fractions, seed=seed, overwrite=True)
        assert [one.digest == two.digest for one, two in zip(others, parts, strict=True)] == [seed == 1] * len(parts)


def test_split_is_the_same_on_every_machine(tmp_path: Path) -> None:
    write(tmp_path / "all.lmdb", [number % 3 for number in range(30)], ("a", "b", "c"))
    copy_store(tmp_path / "all.lmdb", [tmp_path / "t.lmdb", tmp_path / "v.lmdb"], split=[0.8, 0.2], seed=0)
    assert [record.name for record in records(tmp_path / "v.lmdb")] == ["6", "8", "10", "16", "24", "29"]


def test_parts_of_a_split_selection_have_the_selected_classes(tmp_path: Path) -> None:
    write(tmp_path / "all.lmdb", [number % 3 for number in range(30)], ("a", "b", "c"))
    places = [tmp_path / "t.lmdb", tmp_path / "v.lmdb"]
    parts = copy_store(tmp_path / "all.lmdb", places, split=[0.75, 0.25], classes=["a", "c"])
    assert [(part.classes, part.length) for part in parts] == [(("a", "c"), 15), (("a", "c"), 5)]
    for number, part in enumerate(parts):
        expected = {"split": [0.75, 0.25], "seed": 0, "part": number, "classes": ["a", "c"]}
        assert part.source["copy"].items() >= expected.items()


@pytest.mark.parametrize(
    ("fractions", "count", "message"),
    [
        *(
            (
                split,
                2,
                rf"split \(--split\) must be two or more fractions .* as 0.8,0.2 .*, got {re.escape(repr(split))}$",
            )
            for split in ([0.9, 0.2], 0.8, [0.8], "0.8", (80, 20), [1.2, -0.2], [float("nan"), 0.5], ["a", 0.5], b"ab")
        ),
        ([0.9, 0.1], 2, r"split \(--split\): a destination would get none of the 2 records"),
        ([0.9, 0.1], 1, r"split \(--split\): give one destination for each of 2 parts, got 1"),
    ],
)
def test_wrong_split_is_refused(tmp_path: Path, fractions: Any, count: int, message: str) -> None:
    write(tmp_path / "all.lmdb", [0, 1])
    with pytest.raises(OptionError, match=message):
        copy_store(tmp_path / "all.lmdb", [tmp_path / f"{number}.lmdb" for number in range(count)], split=fractions)
    assert [path.name for path in tmp_path.iterdir()] == ["all.lmdb"]


def test_existing_destination_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    make(tmp_path / "all.lmdb")
    taken = write(tmp_path / "v.lmdb", [0])
    with pytest.raises(StoreExistsError, match=r"v\.lmdb exists already; overwrite \(--overwrite\) replaces it"):
        copy_store(tmp_path / "all.lmdb", [tmp_path / "t.lmdb", taken], split=[0.5, 0.5])
    with pytest.raises(OptionError, match="two destinations are the same"):
        copy_store(tmp_path / "all.lmdb", [tmp_path / "t.lmdb", tmp_path / "t.lmdb"], split=[0.5, 0.5])
    assert {path.name for path in tmp_path.iterdir()} == {"all.lmdb", "v.lmdb"}


def test_damaged_source_leaves_destinations_unchanged(tmp_path: Path) -> None:
    make(tmp_path / "all.lmdb")
    old = write(tmp_path / "t.lmdb", [0])
    document = value_at(tmp_path / "all.lmdb", RECORDS, record_key(200))
    tamper_with_records(tmp_path / "all.lmdb", {200: document[:-30] + b"\0" + document[-29:]})
    for seed in range(2):
        with pytest.raises(DamagedRecordError, match=r"record 200 .* is damaged"):
            copy_store(tmp_path / "all.lmdb", [old, tmp_path / "v.lmdb"], split=[0.5, 0.5], seed=seed, overwrite=True)
    assert len(records(old)) == 1
    assert not (tmp_path / "v.lmdb").exists()


# Interruptions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*with the same name as:UserWarning")
def test_killed_merge_resumes_to_the_same_store(tmp_path: Path, mongo_uri: str) -> None:
    sources = [tmp_path / "a.lmdb", tmp_path / "b.lmdb"]
    for seed, one in enumerate(sources):
        make(one, seed=seed)
    renamed: Any = {"rename_classes": {"b": "z"}}
    whole = copy_store(sources, tmp_path / "whole.lmdb", **renamed)
    place: Any
    for place in (tmp_path / "copy.lmdb", mongo_uri):
        for number, at in enumerate((64, 320, 600)):
            killed(at, sources, place, **renamed, resume=number > 0)
        with pytest.raises(StoreExistsError, match="was begun with another choice of records and labels"):
            copy_store(sources, place, rename_classes={"b": "y"}, resume=True)
        counts: list[tuple[int, int]] = []
        manifest = copy_store(
            sources, place, **renamed, resume=True, progress=lambda *done, counts=counts: counts.append(done)
        )
        assert counts[0] >= (256, 600)
        assert (manifest.digest, manifest.outcome, manifest.depths) == (whole.digest, whole.outcome, whole.depths)
        assert events(place) == events(tmp_path / "whole.lmdb")
        assert verified(place) == whole.digest


@pytest.mark.slow
@pytest.mark.parametrize("at", [pytest.param(64, marks=pytest.mark.nightly), 256, -1])
def test_killed_split_resumes_to_the_same_stores(tmp_path: Path, mongo_uri: str, at: int) -> None:
    make(tmp_path / "all.lmdb")
    options: Any = {"split": [0.6, 0.4], "seed": 5}
    whole = copy_store(tmp_path / "all.lmdb", [tmp_path / "t.lmdb", tmp_path / "v.lmdb"], **options)
    places: list[Any] = [tmp_path / "train.lmdb", mongo_uri]
    killed(at, tmp_path / "all.lmdb", places, **options)
    assert places[0].exists() == (at < 0)
    parts = copy_store(tmp_path / "all.lmdb", places, resume=True, **options)
    for place, part, wanted in zip(places, parts, whole, strict=True):
        assert verified(place) == part.digest == wanted.digest
        assert (part.outcome, part.depths, part.events) == (wanted.outcome, wanted.depths, wanted.events)
    with pytest.raises(StoreExistsError, match="is already finished: there is nothing to resume"):
        copy_store(tmp_path / "all.lmdb", places, resume=True, **options)


def test_boolean_field_in_a_query_must_exist_in_all_stores(tmp_path: Path) -> None:
    write_store([{"name": "a", "is_test": True}], tmp_path / "a.lmdb", require_images=False)
    write_store([{"name": "b", "other": True}], tmp_path / "b.lmdb", require_images=False)
    with pytest.raises(OptionError, match=r"b\.lmdb has no column 'is_test'; its columns are .*, other"):
        copy_store([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "c.lmdb", where="is_test")
