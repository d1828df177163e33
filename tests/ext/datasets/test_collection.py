"""MongoDB collections of image files that other programs made are read and converted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pymongo
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from dbloader import MongoDataset, convert, create_loader, open_store
from dbloader.errors import (
    DamagedImageError,
    DamagedRecordError,
    NotAStoreError,
    OptionError,
    StoreError,
)
from dbloader.stores.mongo.uri import parse
from tests.support.images import encoded

COUNT = 40


def jpeg(number: int) -> bytes:
    return encoded(Image.new("RGB", (16 + number, 24), (6 * number, 20, 30)), "JPEG")


def name_of(number: int) -> str:
    return f"class {number % 3}/ä {number}.jpg"


class Old:
    """A foreign collection and the listing of its files."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.listing = folder / "listing.json"
        # An order that differs from the order of the documents and of the names.
        self.numbers = [(7 * number) % COUNT for number in range(COUNT)]
        self.list([name_of(number) for number in self.numbers], [number % 3 for number in self.numbers])

    def list(self, paths: list[str], labels: list[Any]) -> None:
        self.listing.write_text(json.dumps({"label_list": labels, "path_list": paths}))

    @contextmanager
    def collection(self) -> Iterator[Any]:
        at = parse(self.uri)
        with pymongo.MongoClient[Any](self.uri) as client:
            yield client[at.database][at.collection]

    def fill(self, name_field: str = "img_name", *, indexed: bool = True) -> None:
        with self.collection() as collection:
            collection.insert_many(
                {name_field: name_of(number), "bson_img": jpeg(number), "uploaded": 2019} for number in range(COUNT)
            )
            if indexed:
                collection.create_index(name_field)

    def change(self, index: int, data: bytes | None) -> None:
        """Change or remove the file at an index of the listing."""
        name = {"img_name": name_of(self.numbers[index])}
        with self.collection() as collection:
            if data is None:
                collection.delete_one(name)
            else:
                collection.update_one(name, {"$set": {"bson_img": data}})


@pytest.fixture
def old(mongo_uri: str, tmp_path: Path) -> Old:
    old = Old(mongo_uri, tmp_path)
    old.fill()
    return old


def test_collection_is_read_in_the_order_of_the_listing(old: Old) -> None:
    with MongoDataset.from_listing(old.uri, old.listing) as dataset:
        assert len(dataset) == COUNT
        assert dataset.targets.tolist() == [number % 3 for number in old.numbers]
        assert (dataset.names[5], dataset.targets[5]) == (name_of(old.numbers[5]), old.numbers[5] % 3)
        for index in (0, 17, -1):
            image, label = dataset[index]
            assert (image.size[0] - 16, label) == (old.numbers[index], old.numbers[index] % 3)
        batch = dataset.__getitems__([8, 3, 8, 0])
        assert [image.size[0] - 16 for image, _ in batch] == [old.numbers[i] for i in (8, 3, 8, 0)]


def test_transforms_and_create_loader_take_a_collection(old: Old) -> None:
    with MongoDataset.from_listing(old.uri, old.listing, np.array, lambda label: label + 10) as dataset:
        image, label = dataset[3]
        assert (image.shape, label) == ((24, 16 + old.numbers[3], 3), old.numbers[3] % 3 + 10)
    with MongoDataset.from_listing(old.uri, old.listing) as dataset:
        images, labels = next(iter(create_loader(dataset, 8, 4, num_workers=0, device=None)))
        assert (images.shape, labels.tolist()) == ((4, 3, 8, 8), dataset.targets[:4].tolist())


def test_label_of_an_unlabeled_file_is_none(old: Old) -> None:
    old.list([name_of(0), name_of(1)], [1, None])
    with pytest.warns(UserWarning, match="^1 of 2 rows have no label; write one for each"):
        dataset = MongoDataset.from_listing(old.uri, old.listing, decode=None)
    with dataset:
        assert [label for _, label in dataset.__getitems__([0, 1])] == [1, None]


def test_workers_read_a_collection(old: Old) -> None:
    with MongoDataset.from_listing(old.uri, old.listing, decode=len) as dataset:
        dataset[0]  # opens the connection
        loader = DataLoader(dataset, 16, num_workers=2, multiprocessing_context="fork")
        sizes = [len(jpeg(number)) for number in old.numbers]
        assert [size for batch, _ in loader for size in batch.tolist()] == sizes
        with pickle.loads(pickle.dumps(dataset)) as sent:  # noqa: S301 - our own: what a spawned worker gets
            assert sent[1] == dataset[1]


def test_damaged_and_missing_files_are_named_and_an_end_marker_is_appended(old: Old) -> None:
    whole = jpeg(old.numbers[4])
    old.change(4, whole[:-2])
    old.change(5, jpeg(old.numbers[5])[:-20])
    old.change(6, None)
    with old.collection() as collection:
        collection.insert_one({"img_name": name_of(old.numbers[7]), "bson_img": whole})
    with MongoDataset.from_listing(old.uri, old.listing, decode=None) as dataset:
        assert dataset[4][0] == whole
    with MongoDataset.from_listing(old.uri, old.listing) as dataset:
        with pytest.raises(DamagedImageError, match=r"^is damaged: more than its end marker is missing") as caught:
            dataset[5]
        assert caught.value.__notes__ == [f"in record 5 ({name_of(old.numbers[5])}) of {old.uri}"]
        with pytest.raises(DamagedRecordError, match=r"^record 6 \(class .*\.jpg\) is not in mongodb://"):
            dataset.__getitems__([3, 6])
        with pytest.raises(StoreError, match=r"has several documents whose 'img_name' is 'class"):
            dataset[7]


def test_missing_index_on_names_causes_a_warning(mongo_uri: str, tmp_path: Path) -> None:
    old = Old(mongo_uri, tmp_path)
    old.fill(indexed=False)
    with pytest.warns(UserWarning, match=r"has no index on 'img_name'.*: make an index$"):
        dataset = MongoDataset.from_listing(old.uri, old.listing)
    dataset.close()
    report = convert(old.uri, tmp_path / "out.lmdb", listing=old.listing)
    assert "has no index" in report.warnings[0]


def test_collection_without_files_is_refused(mongo_uri: str, tmp_path: Path) -> None:
    old = Old(mongo_uri, tmp_path)
    for field in ("file", "other"):
        with pytest.raises(NotAStoreError, match=r"has no document with a name in 'img_name' and a file's bytes"):
            MongoDataset.from_listing(old.uri, old.listing)
        old.fill(field)


def test_nested_field_names_are_refused(tmp_path: Path) -> None:
    options: Any
    for options in ({"name_field": "meta.name"}, {"image_field": "$name"}):
        with pytest.raises(OptionError, match="must be names of top-level fields of the documents, got"):
            MongoDataset.from_listing("mongodb://nowhere/db.images", tmp_path / "a.json", **options)


@pytest.mark.parametrize("workers", [1, 3])
def test_collection_is_converted(old: Old, tmp_path: Path, workers: int) -> None:
    old.change(4, jpeg(old.numbers[4])[:-2])
    old.change(5, None)
    old.change(6, b"no image")
    place = tmp_path / "out.lmdb"
    report = convert(old.uri, place, listing=old.listing, workers=workers)
    assert (report.files, report.records, report.repaired, report.rejected) == (COUNT, COUNT - 2, 1, 2)
    kept = [number for at, number in enumerate(old.numbers) if at not in (5, 6)]
    with open_store(place) as store:
        assert list(store.names()) == [name_of(number) for number in kept]
        assert [record.image for record in store] == [jpeg(number) for number in kept]
        assert store.column("label").tolist() == [number % 3 for number in kept]
        reasons = {event["name"]: event["reason"] for event in store.events()}
        assert reasons[name_of(old.numbers[5])] == "is not in the collection"
        assert store.manifest.source["path"] == old.uri


def test_listing_may_name_file_fields_in_the_collection(old: Old, tmp_path: Path) -> None:
    listing = tmp_path / "pairs.csv"
    rows = [(name_of(0), name_of(1)), (name_of(2), ""), (name_of(3), "none.jpg")]
    listing.write_text("path,right\n" + "".join(f"{left},{right}\n" for left, right in rows))
    report = convert(old.uri, tmp_path / "out.lmdb", listing=listing, file_fields=("right",))
    assert (report.records, report.rejected) == (2, 1)
    with open_store(tmp_path / "out.lmdb") as store:
        assert store.manifest.file_fields == ("right",)
        assert [record.fields["right"] for record in store] == [jpeg(1), None]
        assert [event["reason"] for event in store.events()] == ["its right none.jpg is not in the collection"]


def test_collection_needs_a_listing(old: Old, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"is not a dbloader store.*; if its documents hold .*, give a listing"):
        convert(old.uri, tmp_path / "out.lmdb")
    with pytest.raises(
        OptionError,
        match=r"name_field \(--name-field\) and image_field \(--image-field\) are for a collection in MongoDB: leave",
    ):
        convert(tmp_path, tmp_path / "out.lmdb", name_field="file")
