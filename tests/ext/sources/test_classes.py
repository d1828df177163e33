"""The option ``classes``: labels get the numbers of given classes, from every source, and nothing shifts in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbloader import LMDBDataset, MongoDataset, convert, export_store, verify_store
from dbloader.conversion.settings import Settings
from dbloader.errors import DBLoaderError, OptionError, SourceError, StoreExistsError
from dbloader.ext.parts.make_plan import plan_parts
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from dbloader.ext.sources.dry_run import dry_run
from tests.support.images import plant
from tests.support.layouts.base import coco, photos, write, write_csv, write_tar, write_zip


@pytest.fixture
def val(tmp_path: Path) -> Path:
    """Images of the classes a and c."""
    return plant(tmp_path / "pets", photos(["a/7.jpg", "c/8.jpg"], 20))


def labels(place: Path) -> tuple[list[str], list[int]]:
    with LMDBDataset(place, decode=None) as dataset:
        return [*dataset.classes], dataset.targets.tolist()


def _names(kind: str, folder: Path) -> Any:
    if kind == "store":
        plant(folder / "all", photos(f"{name}/{name}.jpg" for name in "abc"))
        convert(folder / "all", folder / "train.lmdb", progress=None)
        return folder / "train.lmdb"
    if kind == "text":
        return write(folder, "names.txt", "a\nb\r\n\nc\n")
    if kind == "json":
        return write(folder, "names.json", json.dumps(["a", "b", "c"]))
    return "a,b, c" if kind == "commas" else ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["store", "text", "json", "commas", "list"])
def test_labels_get_the_numbers_of_the_given_classes(val: Path, tmp_path: Path, kind: str) -> None:
    given = _names(kind, tmp_path)
    report = convert(val, tmp_path / "val.lmdb", classes=given, progress=None)
    assert labels(tmp_path / "val.lmdb") == (["a", "b", "c"], [0, 2])
    assert report.warnings == ()
    assert dry_run(val, classes=given).labels == {"a": 1, "b": 0, "c": 1}
    with LMDBDataset(tmp_path / "val.lmdb") as dataset:
        assert dataset.manifest.source["classes"] == "given"


def test_single_name_has_a_comma(tmp_path: Path) -> None:
    plant(tmp_path / "cats", photos(["cat/0.jpg"]))
    convert(tmp_path / "cats", tmp_path / "x.lmdb", classes="cat,", progress=None)
    assert labels(tmp_path / "x.lmdb") == (["cat"], [0])


def test_class_that_is_not_given_is_an_error_with_count_and_names(val: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"1 of the 2 classes of .*pets is not among the 2 given, such as 'a': 'c'$"):
        convert(val, tmp_path / "val.lmdb", classes=["a", "b"], progress=None)
    for name in "defghij":
        plant(val, photos([f"{name}/1.jpg"]))
    with pytest.raises(OptionError, match=r"8 of the 9 classes .*: 'c', 'd', 'e', 'f', 'g' and 3 more$"):
        convert(val, tmp_path / "val.lmdb", classes=["a"], progress=None)
    with pytest.raises(OptionError, match=r": 'c' \(given: 'C '\), 'd', "):
        convert(val, tmp_path / "val.lmdb", classes=["a", "C "], progress=None)
    assert not (tmp_path / "val.lmdb").exists()


@pytest.mark.parametrize("kind", ["folder", "zip", "listing"])
def test_numbers_takes_names_of_classes_as_labels(tmp_path: Path, kind: str) -> None:
    images = photos(f"{number}/{number}.jpg" for number in (1, 2, 10))
    source, listing = plant(tmp_path / "ages", images), None
    if kind == "zip":
        source = write_zip(tmp_path / "ages.zip", images)
    elif kind == "listing":
        rows = [{"path": name, "label": name.split("/")[0]} for name in images]
        listing = write(tmp_path, "ages.jsonl", "\n".join(map(json.dumps, rows)))
    convert(source, tmp_path / "ages.lmdb", listing=listing, classes="numbers", progress=None)
    names, numbers = labels(tmp_path / "ages.lmdb")
    assert names == []
    assert sorted(numbers) == [1, 2, 10]
    assert verify_store(tmp_path / "ages.lmdb", against=source, listing=listing).problems == {}


@pytest.mark.parametrize(
    ("names", "message"),
    [(["1", "b", "c"], "2 of the 3 classes of .* are no integer: 'b', 'c'"), (["1", "01"], "are the same integer")],
)
def test_numbers_refuses_names_that_are_not_different_integers(tmp_path: Path, names: list[str], message: str) -> None:
    plant(tmp_path / "x", photos(f"{name}/0.jpg" for name in names))
    with pytest.raises(OptionError, match=message):
        convert(tmp_path / "x", tmp_path / "x.lmdb", classes="numbers", progress=None)


def test_integer_labels_get_the_given_names_and_must_be_in_range(tmp_path: Path) -> None:
    plant(tmp_path / "photos", photos(["0.jpg", "1.jpg", "2.jpg"]))
    write_csv(tmp_path, "x.csv", [("path", "label"), ("0.jpg", 1), ("1.jpg", 0), ("2.jpg", 2)])
    report = convert(
        tmp_path / "photos", tmp_path / "x.lmdb", listing=tmp_path / "x.csv", classes="cat,dog", progress=None
    )
    assert labels(tmp_path / "x.lmdb") == (["cat", "dog"], [1, 0])
    assert report.rejected == 1
    assert "has the label 2, but no class has this label" in Path(report.report_file).read_text()


def test_boxes_get_the_numbers_of_the_given_classes(tmp_path: Path) -> None:
    images = photos(["0.jpg"])
    plant(tmp_path / "photos", images)
    write(tmp_path, "coco.json", coco([("0.jpg", 40, 30)], {"0.jpg": [("dog", 1, 2, 9, 9)]}, ["dog"]))
    place = tmp_path / "x.lmdb"
    convert(tmp_path / "photos", place, listing=tmp_path / "coco.json", classes="cat,dog", progress=None)
    with LMDBDataset(place, decode=None, fields=("box_labels",)) as dataset:
        assert dataset.classes == ["cat", "dog"]
        assert dataset[0]["box_labels"].tolist() == [1]


def test_plan_keeps_the_names_when_the_store_that_had_them_is_gone(val: Path, tmp_path: Path) -> None:
    given = _names("store", tmp_path)
    plan = plan_parts(Settings(source=val, classes=given), tmp_path / "val.shards", 2)
    given.unlink()
    for number in range(plan.parts):
        convert_part(tmp_path / "val.shards", number)
    publish(tmp_path / "val.shards")
    assert labels(tmp_path / "val.shards") == (["a", "b", "c"], [0, 2])


def test_appended_images_get_the_numbers_of_the_store(val: Path, tmp_path: Path) -> None:
    plant(tmp_path / "new", photos(["c/1.jpg", "b/2.jpg"], 50))
    convert(val, tmp_path / "x.shards", shards=1, progress=None)
    convert(tmp_path / "new", tmp_path / "x.shards", append=True, classes=["b", "c", "d"], progress=None)
    assert labels(tmp_path / "x.shards") == (["a", "c", "b", "d"], [0, 1, 2, 1])


def test_resume_with_other_classes_is_refused(val: Path, tmp_path: Path) -> None:
    plant(val, {"c/9.jpg": b"damaged"})
    with pytest.raises(DBLoaderError, match=r"9\.jpg"):
        convert(val, tmp_path / "x.lmdb", classes="a,b,c", on_bad="fail", progress=None)
    with pytest.raises(StoreExistsError, match=r"begun with another classes \(--classes\) \(3 names"):
        convert(val, tmp_path / "x.lmdb", classes="a,c", resume=True, progress=None)
    convert(val, tmp_path / "x.lmdb", classes="a,b,c", resume=True, progress=None)
    assert labels(tmp_path / "x.lmdb") == (["a", "b", "c"], [0, 2])


def plant_splits(folder: Path, kind: str, **splits: str) -> dict[str, dict[str, Any]]:
    """Write splits with an image for each letter, its class; return the arguments that convert each of them."""
    found: dict[str, dict[str, Any]] = {}
    plant(folder / "all", photos(f"{name}/{name}.jpg" for name in "abcd"))
    for first, (split, names) in enumerate(splits.items()):
        images = photos([f"{name}/{name}.jpg" for name in names], 10 * first)
        if kind == "zip":
            found[split] = {"source": write_zip(folder / f"{split}.zip", images)}
        elif kind == "folder":
            found[split] = {"source": plant(folder / split, images)}
        elif kind == "inside":
            plant(folder / split, {name[2:]: data for name, data in images.items()})
            rows = [(name[2:], *(int(name[0] == other) for other in names)) for name in images]
            listing = write_csv(folder / split, "_classes.csv", [("filename", *names), *rows])
            found[split] = {"source": folder / split, "listing": listing}
        else:
            rows = [(name, name[0]) for name in images]
            listing = write_csv(folder, f"my-{split}.csv", [("path", "label"), *rows])
            found[split] = {"source": folder / "all", "listing": listing}
    return found


@pytest.mark.parametrize("kind", ["folder", "zip", "listing", "inside"])
def test_split_gets_the_numbers_of_train_beside_it(tmp_path: Path, kind: str) -> None:
    splits = plant_splits(tmp_path, kind, train="abc", val="ac", test="abc")
    place = tmp_path / "val.lmdb"
    report = convert(**splits["val"], destination=place, progress=None)
    assert report.warnings == ()
    (said,) = [line for line in report.understood if line.startswith("labels:")]
    train = splits["train"].get("listing") or splits["train"]["source"]
    assert said.endswith(f" (classes of {train}: 3, of which 2 occur here)")
    with LMDBDataset(place, decode=None) as val:
        assert val.classes == ["a", "b", "c"]
        numbers = [np.asarray(val[index][1]).tolist() for index in range(len(val))]
    assert numbers == ([[1, 0, 0], [0, 0, 1]] if kind == "inside" else [0, 2])
    assert verify_store(place, against=splits["val"]["source"], listing=splits["val"].get("listing")).problems == {}
    assert dry_run(**splits["val"]).labels == {"a": 1, "b": 0, "c": 1}
    for split in ("train", "test"):
        found = Settings(**splits[split]).open()
        assert (found.given_classes, found.warnings) == (None, ())


@pytest.mark.parametrize("kind", ["folder", "zip", "listing"])
def test_split_with_a_class_that_train_lacks_keeps_its_numbers_with_a_warning(tmp_path: Path, kind: str) -> None:
    splits = plant_splits(tmp_path, kind, train="abc", val="ad")
    report = convert(**splits["val"], destination=tmp_path / "val.lmdb", progress=None)
    (warning,) = report.warnings
    assert "has other classes (3; here 2) and lacks 'd', so the same label may mean another class" in warning
    assert "--classes" in warning
    assert labels(tmp_path / "val.lmdb") == (["a", "d"], [0, 1])


def test_split_is_known_by_its_folder_when_the_source_is_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_splits(tmp_path, "folder", train="abc", val="ac")
    monkeypatch.chdir(tmp_path / "val")
    assert "".join(Settings(source=".").open().stored_classes) == "abc"


def test_labels_say_that_train_beside_them_cannot_be_read(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "zip", train="abc", val="ac")
    splits["train"]["source"].write_bytes(b"PK broken")
    (said,) = [line for line in Settings(**splits["val"]).open().understood if line.startswith("labels:")]
    assert said.endswith(f"({tmp_path}/train.zip cannot be read, so its classes are not compared; see --classes)")


@pytest.mark.parametrize(
    ("val", "found"), [("val-00003.tar", "train-*.tar"), ("val-{00003..00003}.tar", "train-*.tar")]
)
def test_tar_that_is_not_compared_with_train_beside_it_gives_a_warning(tmp_path: Path, val: str, found: str) -> None:
    for split, names in {"train-00000": "abc", "val-00003": "ac"}.items():
        write_tar(tmp_path / f"{split}.tar", photos(f"{name}/{split}.jpg" for name in names))
    (warning,) = Settings(source=tmp_path / val).open().warnings
    assert warning.startswith(f"{tmp_path}/{found} may have other classes")
    assert "--classes" in warning
    assert Settings(source=tmp_path / val, classes="a,b,c").open().warnings == ()
    assert Settings(source=tmp_path / "train-00000.tar").open().warnings == ()


def test_labels_of_a_store_say_that_train_beside_it_is_not_compared(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val="ac")
    for split, options in splits.items():
        convert(**options, destination=tmp_path / f"{split}.lmdb", progress=None)
    (line,) = [line for line in Settings(source=tmp_path / "val.lmdb").open().understood if line.startswith("labels:")]
    assert line.endswith(f"(not compared with {tmp_path}/train.lmdb; see --classes)")


@pytest.mark.parametrize("kind", ["metadata", "Parquet", "JSON"])
def test_labels_in_a_table_get_the_numbers_of_train_beside_it(tmp_path: Path, kind: str) -> None:
    listing = None
    for split, names in {"train": "abc", "val": "ac"}.items():
        folder = plant(tmp_path / split, photos(f"{name}.jpg" for name in names))
        rows = [{"file_name": f"{name}.jpg", "label": name} for name in names]
        if kind == "metadata":
            write(folder, "metadata.jsonl", "\n".join(map(json.dumps, rows)))
        elif kind == "JSON":
            listing = write(tmp_path, f"{split}.json", json.dumps(rows))
        else:
            for shard, part in enumerate(["a", "bc"] if split == "train" else ["ac"]):
                images = [{"bytes": photos(["x.jpg"])["x.jpg"], "path": f"{name}.jpg"} for name in part]
                file = tmp_path / f"{split}-{shard:05}-of-{2 if split == 'train' else 1:05}.parquet"
                pq.write_table(pa.table({"image": images, "label": [*part]}), file)
    source = tmp_path / ("val-00000-of-00001.parquet" if kind == "Parquet" else "val")
    found = Settings(source=source, listing=listing).open()
    assert (found.stored_classes, found.label_table, found.warnings) == (("a", "b", "c"), [0, 2], ())


@pytest.mark.parametrize(("val", "warns"), [("de", False), ("AC", True)])
def test_train_that_has_none_of_the_classes_is_only_named(tmp_path: Path, val: str, warns: bool) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val=val)
    found = Settings(**splits["val"]).open()
    assert "".join(found.stored_classes) == val
    assert found.understood[1].endswith(f" (none of them is in {tmp_path}/train)") is not warns
    assert ["has other classes" in warning for warning in found.warnings] == [True] * warns


def test_class_in_the_other_unicode_form_gets_the_number_of_the_given_class(tmp_path: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    plant(tmp_path, photos(f"train/{name}/0.jpg" for name in ("a", composed)))
    val = plant(tmp_path, photos([f"val/{decomposed}/1.jpg"], 20)) / "val"
    assert Settings(source=val).open().stored_classes == ("a", composed)
    convert(val, tmp_path / "val.lmdb", classes=["a", composed], progress=None)
    assert labels(tmp_path / "val.lmdb") == (["a", composed], [1])
    convert(tmp_path / "train", tmp_path / "x.shards", shards=1, progress=None)
    convert(val, tmp_path / "x.shards", append=True, progress=None)
    assert labels(tmp_path / "x.shards") == (["a", composed], [0, 1, 1])
    plant(val, photos([f"{composed}/2.jpg"], 30))  # now two folders have the name
    with pytest.raises(OptionError, match="is not among the 2 given"):
        convert(val, tmp_path / "val.lmdb", classes=["a", composed], overwrite=True, progress=None)


def test_appended_images_are_compared_with_their_folder_by_the_names_of_classes(tmp_path: Path) -> None:
    for folder, names in {"first": "ac", "second": "bc"}.items():
        plant(tmp_path, photos([f"{folder}/{name}/{folder}.jpg" for name in names], len(folder)))
        convert(tmp_path / folder, tmp_path / "x.shards", shards=1, append=folder == "second", progress=None)
    assert labels(tmp_path / "x.shards") == (["a", "c", "b"], [0, 1, 2, 1])
    found = verify_store(tmp_path / "x.shards", against=tmp_path / "second").problems
    assert found == {"extra": 2}
    (tmp_path / "second" / "c" / "second.jpg").rename(tmp_path / "second" / "b" / "c.jpg")
    (tmp_path / "second" / "b").rename(tmp_path / "second" / "d")  # no class of the store
    assert "missing" in verify_store(tmp_path / "x.shards", against=tmp_path / "second").problems


def test_appended_class_that_looks_like_one_of_the_store_gives_a_warning(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog", "Cat")):
        plant(tmp_path / str(number), photos([f"{name}/{number}.jpg"], number))
    convert(tmp_path / "0", tmp_path / "x.shards", shards=1, progress=None)
    assert convert(tmp_path / "1", tmp_path / "x.shards", append=True, progress=None).warnings == ()
    (warning,) = convert(tmp_path / "2", tmp_path / "x.shards", append=True, progress=None).warnings
    assert warning.startswith("the classes 'cat', 'Cat' look alike")


def test_appended_numbers_and_names_are_not_mixed(tmp_path: Path) -> None:
    numbers = plant(tmp_path / "numbers", photos(["2/0.jpg", "10/1.jpg"]))
    convert(numbers, tmp_path / "names.shards", shards=1, progress=None)
    with pytest.raises(OptionError, match=r"has class names, so classes \(--classes\) 'numbers' would"):
        convert(numbers, tmp_path / "names.shards", append=True, classes="numbers", progress=None)
    convert(numbers, tmp_path / "numbers.shards", shards=1, classes="numbers", progress=None)
    with pytest.raises(OptionError, match=r"or by classes='numbers' \(--classes numbers\)"):
        convert(numbers, tmp_path / "numbers.shards", append=True, progress=None)
    with pytest.raises(OptionError, match=r"has no names of classes; classes='numbers' \(--classes numbers\) takes"):
        convert(numbers, tmp_path / "x.lmdb", classes=tmp_path / "numbers.shards", progress=None)
    write(tmp_path, "data.yaml", "names: [cat]")
    with pytest.raises(OptionError, match=r"data\.yaml' is no store; give a store, a \.txt "):
        convert(numbers, tmp_path / "x.lmdb", classes=tmp_path / "data.yaml", progress=None)


def test_classes_that_the_user_gives_replace_those_of_train(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val="ac")
    convert(**splits["val"], destination=tmp_path / "val.lmdb", classes="a,c", progress=None)
    assert labels(tmp_path / "val.lmdb") == (["a", "c"], [0, 1])


def test_numbers_never_come_from_val_or_test(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "folder", val="abc", test="ac", train="bc")
    for split, names in {"val": "abc", "test": "ac", "train": "bc"}.items():
        assert "".join(Settings(**splits[split]).open().stored_classes) == names


def test_numbers_of_train_that_are_not_its_names_are_a_warning(tmp_path: Path) -> None:
    plant(tmp_path, photos(f"train/{number}/0.jpg" for number in (1, 2, 10)))
    plant(tmp_path, photos(["val/1/0.jpg"], 20))
    found = Settings(source=tmp_path / "val").open()
    assert found.understood[1].endswith(f"1 class, '1' is 0 (classes of {tmp_path}/train: 3, of which 1 occur here)")
    assert ["--classes numbers" in warning for warning in found.warnings] == [True]


def test_parts_get_the_numbers_of_train_as_it_was_when_planned(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val="ac")
    plan = plan_parts(Settings(**splits["val"]), tmp_path / "val.shards", 2)
    plant(tmp_path, photos(["train/Z/0.jpg"], 50))
    for number in range(plan.parts):
        convert_part(tmp_path / "val.shards", number)
    publish(tmp_path / "val.shards")
    assert labels(tmp_path / "val.shards") == (["a", "b", "c"], [0, 2])
    convert(**splits["val"], destination=tmp_path / "new.shards", shards=2, progress=None)
    assert labels(tmp_path / "new.shards") == (["Z", "a", "b", "c"], [1, 3])


def test_appended_split_gets_the_numbers_of_the_store_not_of_train(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val="ac", test="cd")
    convert(**splits["val"], destination=tmp_path / "x.shards", classes="a,c", shards=1, progress=None)
    plant(tmp_path, photos(["val/c/1.jpg"], 70))
    for source in (splits["val"], splits["test"]):
        convert(**source, destination=tmp_path / "x.shards", append=True, progress=None)
    assert labels(tmp_path / "x.shards") == (["a", "c", "d"], [0, 1, 0, 1, 1, 1, 2])


def test_resume_is_refused_if_train_has_got_other_classes(tmp_path: Path) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val="ac")
    plant(tmp_path, {"val/c/9.jpg": b"damaged"})
    with pytest.raises(DBLoaderError, match=r"9\.jpg"):
        convert(**splits["val"], destination=tmp_path / "x.lmdb", on_bad="fail", progress=None)
    new = plant(tmp_path, photos(["train/b2/0.jpg"], 50)) / "train" / "b2"
    with pytest.raises(StoreExistsError, match=r"begun with another classes \(--classes\) \(3 names, .*now 4 names"):
        convert(**splits["val"], destination=tmp_path / "x.lmdb", resume=True, progress=None)
    new.rename(tmp_path / "b2")
    convert(**splits["val"], destination=tmp_path / "x.lmdb", resume=True, progress=None)
    assert labels(tmp_path / "x.lmdb") == (["a", "b", "c"], [0, 2])


def test_split_in_mongodb_gets_the_numbers_of_train(tmp_path: Path, mongo_uri: str) -> None:
    splits = plant_splits(tmp_path, "folder", train="abc", val="ac")
    convert(**splits["val"], destination=mongo_uri, progress=None)
    with MongoDataset(mongo_uri, decode=None) as val:
        assert ([*val.classes], val.targets.tolist()) == (["a", "b", "c"], [0, 2])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("cat", r"there is no file or store 'cat'; give .*\(a single name needs a comma: cat,\)"),
        ([], "must be different names"),
        (["a", "a"], "must be different names"),
        (7, "must be"),
        ([1, 2], r"must be names, such as \('cat', 'dog'\)"),
    ],
)
def test_wrong_classes_are_an_error(val: Path, tmp_path: Path, classes: Any, message: str) -> None:
    with pytest.raises((OptionError, TypeError), match=message):
        convert(val, tmp_path / "x.lmdb", classes=classes, progress=None)


def test_comment_among_the_names_of_classes_is_an_error(val: Path, tmp_path: Path) -> None:
    # If the labels are integers, each name after the comment would get a number too high.
    names = tmp_path / "names.txt"
    names.write_text("# my classes\na\nb\nc\n")
    with pytest.raises(SourceError, match=r"names.txt: the line '# my classes' looks like a comment.*: remove it"):
        convert(val, tmp_path / "x.lmdb", classes=names, progress=None)


@pytest.mark.parametrize(
    ("train", "val", "is_split"),
    [
        ("train", "val", True),
        ("Train", "Validation", True),
        ("pets_train", "pets_test", True),
        ("training", "val", True),
        ("seg_train/seg_train", "seg_test/seg_test", True),
        ("trainset", "testset", True),
        ("train", "evaluation", True),
        ("trained", "val", False),
        ("train", "valley", False),
    ],
)
def test_train_is_found_beside_a_split_by_its_name(tmp_path: Path, train: str, val: str, is_split: bool) -> None:
    files = [f"{train}/{name}/1.jpg" for name in "abc"] + [f"{val}/{name}/2.jpg" for name in "ac"]
    plant(tmp_path, photos(files, 20))
    found = Settings(source=tmp_path / val).open()
    assert "".join(found.stored_classes) == ("abc" if is_split else "ac")
    assert found.warnings == Settings(source=tmp_path / train).open().warnings == ()
    (tmp_path / val / "d").mkdir()
    found = Settings(source=tmp_path / val).open()
    assert "".join(found.stored_classes) == "acd"
    assert ["--classes" in warning and "(3; here 3)" in warning for warning in found.warnings] == [True] * is_split


@pytest.mark.parametrize("kind", ["COCO", "YOLO", "Parquet", "tars", "metadata"])
def test_numbers_that_the_files_give_their_classes_are_no_warning(tmp_path: Path, kind: str) -> None:
    source, listing = plant(tmp_path / "x", photos(f"{name}/{name}.jpg" for name in "123")), None
    if kind == "COCO":
        listing = write(tmp_path, "coco.json", coco([("1/1.jpg", 40, 30)], {"1/1.jpg": [("2", 1, 2, 9, 9)]}, "123"))
    elif kind == "YOLO":
        listing = write(tmp_path, "data.yaml", "names: ['1', '2', '3']")
        write(tmp_path, "x/1/1.txt", "1 0.5 0.5 0.5 0.5")
    elif kind == "metadata":
        source = plant(tmp_path / "y", photos(["1.jpg"]))
        write(source, "metadata.jsonl", '{"file_name": "1.jpg", "label": "2"}')
        write(source, "classes.json", '["1", "2", "3"]')
    else:
        convert(source, tmp_path / "x.lmdb", progress=None)
        form = {"Parquet": "parquet", "tars": "webdataset"}[kind]
        export_store(tmp_path / "x.lmdb", tmp_path / "out", format=form)
        source = tmp_path / "out"
    found = Settings(source=source, listing=listing).open()
    assert (found.classes, found.warnings) == (("1", "2", "3"), ())
    assert "--classes numbers" in Settings(source=tmp_path / "x").open().warnings[0]


def test_lines_about_the_source_have_the_labels_of_the_given_classes(tmp_path: Path, val: Path) -> None:
    found = Settings(source=val, classes=("a", "b", "c")).open()
    assert found.understood[1].endswith("2 classes, 'a' is 0 and 'c' is 2")
    numbers = plant(tmp_path / "numbers", photos(["2/0.jpg", "10/1.jpg"], 20))
    assert "--classes numbers" in Settings(source=numbers).open().warnings[0]
    found = Settings(source=numbers, classes="numbers").open()
    assert found.understood[1].endswith("2 classes, '10' is 10 and '2' is 2")
    assert found.warnings == ()


def test_lines_about_appended_images_have_the_labels_of_the_store(tmp_path: Path, val: Path) -> None:
    plant(tmp_path / "train", photos(["a/0.jpg", "b/1.jpg", "c/2.jpg"], 20))
    convert(tmp_path / "train", tmp_path / "x.shards", shards=1, progress=None)
    report = convert(val, tmp_path / "x.shards", append=True, progress=None)
    assert report.understood[1].endswith("2 classes, 'a' is 0 and 'c' is 2")
    assert report.warnings == ()
    numbers = plant(tmp_path / "numbers", photos(["2/0.jpg", "10/1.jpg"], 30))
    report = convert(numbers, tmp_path / "x.shards", append=True, classes=["2", "10"], progress=None)
    assert report.understood[1].endswith("2 classes, '10' is 4 and '2' is 3")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("map.json", '{"0": "c", "1": "b", "2": "a"}'),
        ("map.json", '{"a": 2, "b": 1, "c": 0}'),
        ("LOC_synset_mapping.txt", "c tench, Tinca tinca\nb goldfish\na shark\n"),
        ("classes.txt", "1 c\n2 b\n3 a\n"),
        ("classes.txt", "2 a\n0 c\n1 b\n"),
    ],
)
def test_file_with_numbers_or_descriptions_of_classes_gives_their_order(
    val: Path, tmp_path: Path, name: str, text: str
) -> None:
    convert(val, tmp_path / "val.lmdb", classes=write(tmp_path, name, text), progress=None)
    assert labels(tmp_path / "val.lmdb") == (["c", "b", "a"], [2, 0])


@pytest.mark.parametrize("text", ['{"1": "a", "2": "c"}', '{"0": ["a", "b"], "1": ["c"]}', '{"a": 0, "c": 2}'])
def test_json_with_other_numbers_of_classes_is_an_error(val: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(DBLoaderError, match="must be a list of names"):
        convert(val, tmp_path / "val.lmdb", classes=write(tmp_path, "map.json", text), progress=None)


def test_text_with_gaps_between_the_numbers_of_classes_is_an_error(val: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not among the 3 given, such as '1 a'"):
        convert(val, tmp_path / "val.lmdb", classes=write(tmp_path, "names.txt", "1 a\n3 b\n9 c\n"), progress=None)


def test_table_of_classes_is_refused(val: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"a \.txt with a name on each line"):
        convert(val, tmp_path / "val.lmdb", classes=write(tmp_path, "signs.csv", "id,name\n0,a\n"), progress=None)


def test_integer_labels_from_1_are_an_error_beside_names(val: Path, tmp_path: Path) -> None:
    listing = write(tmp_path, "list.csv", "path,label\na/7.jpg,2\nc/8.jpg,1\n")
    with pytest.raises(OptionError, match="end at 2, but the 2 names have the labels from 0 on"):
        convert(val, tmp_path / "val.lmdb", listing=listing, classes="a,c", progress=None)


def test_csv_that_is_there_is_no_store_of_classes(val: Path, tmp_path: Path) -> None:
    write(tmp_path, "names.csv", "id,name\n0,a\n")
    with pytest.raises(OptionError, match=r"names.csv' is no store; give a store, a .txt with a name on each line"):
        convert(val, tmp_path / "val.lmdb", classes=str(tmp_path / "names.csv"), progress=None)
