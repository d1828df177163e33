"""Appended records follow the old records, and open readers keep the old state."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dbloader import ImageFormat, Listing, LMDBDataset, convert, copy_store, open_store
from dbloader.checking.verify_store import verify_store
from dbloader.errors import (
    ConversionError,
    NotAStoreError,
    OptionError,
    PlaceError,
    SourceError,
    StoreExistsError,
    StoreLockedError,
    StoreNotFoundError,
)
from dbloader.ext.parts.part import convert_part
from dbloader.ext.parts.publish import publish
from dbloader.ext.publishing.publish_shards import locked, move_into
from dbloader.records.decode import decode
from dbloader.stores.base import Store
from dbloader.stores.lmdb.store import LMDBStore
from tests.contracts.records import stored
from tests.ext.parts.test_shards import Here
from tests.support.images import plant_coco, plant_kinds, plant_photos
from tests.support.parts import plan_conversion


def contents(place: Path) -> list[tuple[str | None, str | None, bytes]]:
    """Return name, class and image of each record."""
    with open_store(place) as store:
        names = store.manifest.classes
        return [
            (record.name, None if record.label is None else names[record.label], bytes(record.image or b""))
            for record in store
        ]


def files(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


@pytest.fixture
def grown(root: Path, place: Path, tmp_path: Path) -> Path:
    """A store of 7 photos of cats and dogs in two shards.

    The folder ``new`` beside it has 5 photos of ants, cats and owls.
    """
    convert(plant_photos(root, 7), place, shards=2, executor=Here())
    plant_photos(tmp_path / "new", 5, classes=("cat", "owl", "ant"))
    return place


@pytest.mark.parametrize("shards", [None, 3])
def test_appended_store_equals_one_store_of_all(grown: Path, root: Path, tmp_path: Path, shards: int | None) -> None:
    plant_kinds(tmp_path / "new", "text", "no end marker", "half")
    convert(root, tmp_path / "old.lmdb")
    alone = convert(tmp_path / "new", tmp_path / "alone.lmdb")
    report = convert(tmp_path / "new", grown, append=True, shards=shards, executor=Here())
    assert contents(grown) == contents(tmp_path / "old.lmdb") + contents(tmp_path / "alone.lmdb")
    with open_store(grown) as store:
        assert store.manifest.classes[:4] == ("cat", "dog", "ant", "owl")  # the old classes, then the new ones, sorted
        assert store.verify() == report.digest
        events = [*store.events()]
        # One file with the old records and then the new records would have the same documents.
        with LMDBStore(tmp_path / "old.lmdb") as old:
            assert stored(store, range(7)) == stored(old, range(7))
        records = [decode(document, index, 0) for index, document in enumerate(stored(store, range(len(store))))]
    with open_store(tmp_path / "alone.lmdb") as store:
        assert events == [*store.events()]
    copied = copy_store(grown, tmp_path / "one.lmdb")
    assert copied.digest == report.digest
    assert [record.index for record in records] == [*range(report.records)]
    counts = {"rejected": alone.rejected, "repaired": alone.repaired, "files": alone.files}
    assert {name: getattr(report, name) for name in counts} == counts
    assert len(Path(report.report_file).read_text().splitlines()) == len(events)
    assert len([*(grown / "shards").iterdir()]) == 2 + (shards or 1)
    assert not Path(f"{grown}.partial").exists()
    again = convert(tmp_path / "new", grown, append=True, executor=Here())
    assert {name: getattr(again, name) for name in counts} == counts  # the report counts only the new images
    assert again.earlier_events == len(events)


def test_repeated_append_warns_about_equal_images(grown: Path, root: Path, tmp_path: Path) -> None:
    plant_photos(tmp_path / "other", 3, width=31)
    [named] = convert(tmp_path / "other", grown, append=True, executor=Here()).warnings
    assert named.startswith("3 new images have the name of an earlier record, which stays: ")
    report = convert(root, grown, append=True, executor=Here())
    assert (report.records, report.unchanged) == (7 + 3 + 7, 0)
    assert [warning.partition(":")[0] for warning in report.warnings] == [
        "7 new images were in the store already, with the same name, label and fields"
    ]


@pytest.mark.parametrize("shards", [1, 3])
def test_new_only_adds_what_is_new_or_changed(root: Path, place: Path, shards: int) -> None:
    plant_kinds(plant_photos(root, 7), "text", "no end marker", "half")
    first = convert(root, place, shards=2, executor=Here())
    before = contents(place)
    plant_photos(root, 2, classes=("owl",), width=40)
    (root / "cat" / "0000.jpg").write_bytes((root / "dog" / "0001.jpg").read_bytes())  # of nearly the same size
    (root / "dog" / "text.jpg").write_bytes(b"text")
    report = convert(root, place, append=True, new_only=True, shards=shards, executor=Here())
    changed = ("cat/0000.jpg", "cat", (root / "cat" / "0000.jpg").read_bytes())
    owls = [(f"owl/{n:04}.jpg", "owl", (root / f"owl/{n:04}.jpg").read_bytes()) for n in range(2)]
    assert contents(place) == [*before, changed, *owls]
    assert (report.files, report.unchanged, report.rejected) == (first.files + 3, first.records - 1, 3)
    assert report.files == report.unchanged + report.rejected + report.records - first.records
    assert [event["name"] for event in map(json.loads, Path(report.report_file).read_text().splitlines())][3:] == [
        "dog/text.jpg"
    ]
    assert verify_store(place).problems == {}


@pytest.mark.parametrize("new", ["nothing", "a bad file"])
def test_new_only_without_new_images_counts_all_files(root: Path, place: Path, new: str) -> None:
    plant_kinds(plant_photos(root, 7), "text", "half")
    first = convert(root, place, shards=2, executor=Here())
    before = files(place)
    if new == "a bad file":
        (root / "dog" / "text.jpg").write_bytes(b"text")
    for _ in range(2):
        report = convert(root, place, append=True, new_only=True, executor=Here())
        rejected = 2 + (new == "a bad file")
        assert (report.records, report.unchanged, report.rejected) == (first.records, first.records, rejected)
        assert len(Path(report.report_file).read_text().splitlines()) == rejected  # each file has one line
        assert not Path(f"{place}.partial").exists()
    assert (files(place) == before) == (new == "nothing")
    assert verify_store(place).problems == {}


def test_new_only_compares_masks_labels_and_small_images(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 3, width=200, height=100)
    listing = labelled(root, 3, 4, 5)
    options: dict[str, Any] = {"listing": listing, "images": ImageFormat(short_side=40), "executor": Here()}
    convert(root, place, shards=1, **options)
    labelled(root, 3, 4, 6)
    report = convert(root, place, append=True, new_only=True, **options)
    assert (report.records, report.unchanged) == (4, 2)
    del options["images"]
    with pytest.raises(OptionError, match="was made with another short_side, so new_only"):
        convert(root, place, append=True, new_only=True, **options)
    for shards in (None, 2):
        with pytest.raises(OptionError, match=r"new_only \(--new-only\) needs append \(--append\)"):
            convert(root, tmp_path / "other.lmdb", new_only=True, shards=shards)
    with open_store(place) as store:
        assert [store.label(index) for index in range(len(store))] == [3, 4, 5, 6]


def test_appending_again_keeps_the_previous_index(grown: Path, tmp_path: Path) -> None:
    indices = []
    for number in range(4):
        plant_photos(tmp_path / f"{number}", 2)
        convert(tmp_path / f"{number}", grown, append=True, executor=Here())
        indices.append([name for name in files(grown) if name.startswith("index-")])
    assert [len(names) for names in indices] == [3, 3, 3, 3]  # the old index, the new index, and the previous manifest
    assert len(contents(grown)) == 7 + 4 * 2
    convert(tmp_path / "0", grown, shards=1, executor=Here(), overwrite=True)
    assert len(files(grown)) == 3


def test_open_readers_keep_the_old_records(grown: Path, tmp_path: Path) -> None:
    with LMDBStore(grown) as store, LMDBDataset(grown) as dataset, LMDBStore(grown) as manifest_only:
        before = stored(store, range(7))
        names = [*store.names()]
        assert len(manifest_only) == 7  # this opens no index and no shard
        data = pickle.dumps(dataset)
        convert(tmp_path / "new", grown, append=True, executor=Here())
        assert stored(store, range(7)) == stored(manifest_only, range(7)) == before
        assert [*manifest_only.names()] == names
        worker = pickle.loads(data)  # noqa: S301 - made above; as a DataLoader begins its next epoch
        assert len(worker) == 7
        assert worker[6][1] == dataset[6][1]
        assert worker.targets.tolist() == dataset.targets.tolist()
        assert worker.store.manifest.digest == dataset.manifest.digest
        worker.close()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(dataset.__getitem__, (3,))[1] == dataset[3][1]
            pool.close()
            pool.join()
        again = pickle.loads(data)  # noqa: S301
        convert(tmp_path / "new", grown, append=True, executor=Here())
        with pytest.raises(NotAStoreError, match="has been replaced since this dataset was made"):
            again[0]
        again.close()
        assert stored(store, range(7)) == before  # the store still has the old files open
        manifest_only.close()
        assert len(manifest_only) == 17


def labelled(root: Path, *labels: int | None) -> Path:
    """Return a listing that gives the images these labels."""
    paths = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))
    rows = [{"path": path, "label": label} for path, label in zip(paths, labels, strict=True)]
    listing = root.parent / "listing.jsonl"
    listing.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return listing


@pytest.mark.parametrize("names_first", [False, True])
def test_append_refuses_to_mix_integer_labels_with_class_names(root: Path, place: Path, names_first: bool) -> None:
    integers = labelled(plant_photos(root, 3), 3, 4, 5)
    convert(root, place, shards=1, executor=Here(), listing=None if names_first else integers)
    before = files(place)
    with pytest.raises((SourceError, OptionError), match=r"integer.*class names: give the new images"):
        convert(root, place, append=True, executor=Here(), listing=integers if names_first else None)
    assert files(place) == before
    assert not Path(f"{place}.partial").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "A1",
            "12",
            r"'code' of .* is 12, and has texts in .*: keep the texts of a CSV \(--text-column code\), or",
        ),
        ("12", "A1", r"'code' of .* is 'A1', and has numbers in .*: mend the value, or give the field another name"),
        ("true", "1", r"'code' of .* is 1, and has booleans in "),
    ],
)
def test_append_refuses_values_of_another_kind(
    root: Path, place: Path, tmp_path: Path, before: str, after: str, message: str
) -> None:
    plant_photos(root, 2)
    paths = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*.jpg"))]
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_text(f"path,label,code\n{paths[0]},cat,{before}\n")
    second.write_text(f"path,label,code\n{paths[1]},dog,{after}\n")
    convert(root, place, shards=1, executor=Here(), listing=first)
    with pytest.raises(OptionError, match=message):
        convert(root, place, append=True, executor=Here(), listing=second)
    if before == "A1":
        convert(root, place, append=True, executor=Here(), listing=Listing(second, text="code"))
        assert [*LMDBDataset(place, fields=["code"]).column("code")] == ["A1", "12"]


def test_class_names_are_appended_to_a_store_without_labels(root: Path, place: Path) -> None:
    convert(root, place, shards=1, executor=Here(), listing=labelled(plant_photos(root, 3), None, None, None))
    convert(root, place, append=True, executor=Here())
    with open_store(place) as store:
        assert store.manifest.classes == ("cat", "dog")
        assert store.verify()


def test_labels_of_boxes_become_labels_of_the_store(root: Path, place: Path, tmp_path: Path) -> None:
    convert(plant_photos(root, 3, classes=("zebra", "dog")), place, shards=1, executor=Here())
    plant_coco(tmp_path)
    options: dict[str, Any] = {"listing": tmp_path / "annotations" / "instances_train2017.json"}
    convert(tmp_path / "train2017", tmp_path / "alone.lmdb", **options)
    convert(tmp_path / "train2017", place, append=True, executor=Here(), **options)

    def named(store: Store, begin: int) -> list[list[str]]:
        records = store[begin:]
        return [[store.manifest.classes[label] for label in record.fields["box_labels"]] for record in records]

    with open_store(place) as store, open_store(tmp_path / "alone.lmdb") as alone:
        assert store.manifest.classes == ("dog", "zebra", "cat")
        assert named(store, 3) == named(alone, 0) == [["dog", "cat"], [], []]
        assert store.verify()


def test_append_to_a_place_that_is_no_folder_of_shards_is_refused(root: Path, place: Path, tmp_path: Path) -> None:
    plant_photos(root, 3)
    with pytest.raises(StoreNotFoundError, match=r"nothing is at .*: shards=8 \(--shards 8\) without append"):
        convert(root, place, shards=1, append=True)
    convert(root, place)
    before = place.read_bytes()
    with pytest.raises(OptionError, match=r"is no such folder: .* join the two with dbloader copy; or .* --shards"):
        convert(root, place, append=True)
    assert place.read_bytes() == before
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError, match=r"is no such folder: .* join the two with dbloader copy$"):
        convert(root, tmp_path / "folder", append=True)
    for append in (True, False):
        with pytest.raises((OptionError, PlaceError), match="MongoDB"):
            convert(root, "mongodb://user:secret@nowhere/a.b", append=append, shards=1)
    with pytest.raises(OptionError, match="choose one"):
        convert(root, place, append=True, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "images", "out.lmdb"]


class AtOnce(Here):
    """An executor. Another conversion appends the same images before the executor runs its task, or just after."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        made = None if self.before else super().submit(function, *arguments, **options)
        place = Path(arguments[0])
        report = convert(place.with_name("new"), place, append=True, executor=Here())
        assert (report.records, report.files, report.rejected) == (12, 6, 1)
        return made or super().submit(function, *arguments, **options)


@pytest.mark.parametrize("before", [False, True])
def test_images_that_two_processes_append_at_once_are_added_once(grown: Path, tmp_path: Path, before: bool) -> None:
    (tmp_path / "new" / "cat" / "text.jpg").write_bytes(b"text")
    executor = AtOnce(before=before)
    if before:
        with pytest.raises(StoreNotFoundError):
            convert(tmp_path / "new", grown, append=True, executor=executor)
    else:
        report = convert(tmp_path / "new", grown, append=True, executor=executor)
        assert (report.records, report.files, report.rejected) == (12, 6, 1)
        assert "the store was published already" in report.warnings[0]
    assert len(contents(grown)) == 12
    assert verify_store(grown).problems == {}
    assert not Path(f"{grown}.partial").exists()


def test_part_that_another_process_publishes_meanwhile_is_refused(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_first() -> None:
        monkeypatch.undo()
        convert(tmp_path / "new", grown, append=True, executor=Here())

    monkeypatch.setattr("dbloader.ext.parts.part.return_large_blocks", publish_first)
    gone = r"out\.lmdb\.partial is gone: another process has published its parts, or removed the plan$"
    with pytest.raises(ConversionError, match=f"^part 0: .*{gone}"):
        convert(tmp_path / "new", grown, append=True, executor=Here())
    assert len(contents(grown)) == 12
    assert verify_store(grown).problems == {}
    assert not Path(f"{grown}.partial").exists()


def test_concurrent_append_has_one_winner(grown: Path, tmp_path: Path) -> None:
    plan_conversion(tmp_path / "new", grown, 1, append=True)
    plant_photos(tmp_path / "other", 2)
    with pytest.raises(StoreExistsError, match="has the plan of another conversion: publish it"):
        convert(tmp_path / "other", grown, append=True, executor=Here())
    convert_part(grown, 0)
    publishing = locked(grown / "manifest.bson", 0, str(grown), "publishing")
    with publishing, pytest.raises(StoreLockedError, match="another process is publishing"):
        publish(grown)
    assert len(contents(grown)) == 7
    slow = Path(f"{grown}.partial").rename(tmp_path / "slow")
    convert(tmp_path / "other", grown, append=True, executor=Here())
    after = contents(grown)
    slow.rename(f"{grown}.partial")
    with pytest.raises(StoreExistsError, match="has changed since the plan was made"):
        publish(grown)
    assert contents(grown) == after


def test_append_is_refused_if_the_store_changes_just_before_the_lock(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_conversion(tmp_path / "new", grown, 1, append=True)
    convert_part(grown, 0)
    plant_photos(tmp_path / "other", 2)
    after: list[Any] = []

    def move_late(*arguments: Any) -> None:
        monkeypatch.undo()
        slow = Path(f"{grown}.partial").rename(tmp_path / "slow")
        convert(tmp_path / "other", grown, append=True, executor=Here())
        after.extend(contents(grown))
        slow.rename(f"{grown}.partial")
        move_into(*arguments)

    monkeypatch.setattr("dbloader.ext.parts.publish.move_into", move_late)
    with pytest.raises(StoreExistsError, match="has changed since the plan was made"):
        publish(grown)
    assert contents(grown) == after
    assert len(after) == 9


def test_publishing_again_after_a_kill_appends_no_record_twice(grown: Path, tmp_path: Path) -> None:
    plan_conversion(tmp_path / "new", grown, 1, append=True)
    convert_part(grown, 0)
    shutil.copytree(f"{grown}.partial", tmp_path / "kept")
    first = publish(grown)
    before = files(grown)
    (tmp_path / "kept").rename(f"{grown}.partial")
    with pytest.raises(StoreExistsError, match="has the plan of another conversion: publish it"):
        convert(tmp_path / "new", grown, append=True, executor=Here())
    again = publish(grown)
    assert (again.digest, again.records, again.files) == (first.digest, 12, 0)
    assert "published already" in again.warnings[0]
    assert files(grown) == before
    assert not Path(f"{grown}.partial").exists()


def test_warning_names_shards_of_a_killed_publisher(grown: Path, tmp_path: Path) -> None:
    plan_conversion(tmp_path / "new", grown, 1, append=True)
    shard = convert_part(grown, 0).shard
    shutil.copy(f"{grown}.partial/shards/{shard}", grown / "shards")  # the publisher was killed after this step
    shutil.rmtree(f"{grown}.partial")
    kept = next(grown.glob("index-*")).with_suffix(".lmdb.manifest.bson")
    kept.write_bytes(b"half")
    report = convert(tmp_path / "new", grown, append=True, executor=Here())
    assert [warning for warning in report.warnings if f"not name: shards/{shard}; " in warning]
    assert kept.stat().st_size > 4
    assert verify_store(grown).notes == [warning for warning in report.warnings if "not name" in warning]
    (grown / "shards" / shard).unlink()
    assert verify_store(grown).notes == []
    warnings = convert(tmp_path / "new", grown, append=True, executor=Here()).warnings
    assert [warning for warning in warnings if "not name" in warning] == []


def test_store_behind_a_symbolic_link_can_be_made_replaced_and_grown(root: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "far" / "store.lmdb", tmp_path / "link.lmdb"
    target.parent.mkdir()
    link.symlink_to(target)
    plant_photos(root, 4)
    for option, length in (("resume", 4), ("overwrite", 4), ("append", 8)):
        convert(root, link, shards=2, executor=Here(), **{option: True})  # type: ignore[arg-type]
        assert link.is_symlink()
        assert len(contents(target)) == len(contents(link)) == length
        assert [path.name for path in target.parent.iterdir()] == ["store.lmdb"]


def test_append_with_another_check_removes_the_check_from_the_manifest(grown: Path, tmp_path: Path) -> None:
    convert(tmp_path / "new", grown, append=True, executor=Here(), check="structure")
    with open_store(grown) as store:
        source = store.manifest.source
        assert "check" not in source  # so training decodes the images with all checks
        assert source["path"] == f"{tmp_path / 'images'}, {tmp_path / 'new'}"
