"""write_store copies the records of other stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from typing_extensions import override

from dbloader import LMDBDataset, convert, write_store
from dbloader.decoding import DecodeTensor, decode_pil
from dbloader.errors import DamagedImageError, FieldError, OptionError
from dbloader.stores.open import open_store
from tests.support.conversion import records
from tests.support.images import photo, picture, plant, plant_photos
from tests.support.parts import plan_conversion


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of 9 JPEGs and PNGs of two classes, with an additional field."""
    root = plant_photos(tmp_path / "images", 8)
    plant(root, {"dog/9.png": picture("PNG")})
    (tmp_path / "list.csv").write_text(
        "path,label,caption\n"
        + "".join(f"{name}/{n:04}.jpg,{name},no. {n}\n" for n, name in enumerate(["cat", "dog"] * 4))
        + "dog/9.png,dog,the last\n"
    )
    convert(root, tmp_path / "first.lmdb", listing=tmp_path / "list.csv")
    return tmp_path / "first.lmdb"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.lmdb"


def other(tmp_path: Path, *classes: str) -> Path:
    """Return another store with these classes."""
    place = tmp_path / f"{'-'.join(classes)}.lmdb"
    convert(plant_photos(tmp_path / f"of {place.name}", 2 * len(classes), classes), place)
    return place


def facts_of(place: Path) -> list[tuple[Any, ...]]:
    return [(r.name, r.label, r.image, r.width, r.height, r.format, r.fields) for r in records(place)]


def test_whole_dataset_is_copied_as_records(place: Path, out: Path) -> None:
    with LMDBDataset(place) as dataset:
        manifest = write_store(dataset, out)
        first = dataset.manifest
    assert (manifest.digest, manifest.classes, manifest.fields) == (first.digest, ("cat", "dog"), {"caption": 9})
    assert (manifest.formats, manifest.depths, manifest.named) == ({"JPEG": 8, "PNG": 1}, {"8-bit": 9}, 9)
    assert manifest.source == {**first.source, "kind": "records"}
    assert facts_of(out) == facts_of(place)


def test_subsets_and_splits_are_copied_as_records(place: Path, out: Path) -> None:
    all_of_them = facts_of(place)
    with LMDBDataset(place) as dataset:
        split = random_split(dataset, [5, 4], torch.Generator().manual_seed(1))[0]
        for subset, wanted in (
            (Subset(dataset, [8, 0, 0, -2]), [8, 0, 0, 7]),
            (Subset(Subset(dataset, [8, 3, 5]), [2, 0]), [5, 8]),
            (Subset(dataset, torch.tensor([4, 2])), [4, 2]),  # type: ignore[arg-type]
            (split, list(split.indices)),
        ):
            manifest = write_store(subset, out, overwrite=True)
            assert facts_of(out) == [all_of_them[at] for at in wanted]
            assert manifest.classes == ("cat", "dog")


def test_concatenated_datasets_are_copied_as_records_in_order(place: Path, out: Path, tmp_path: Path) -> None:
    second = other(tmp_path, "cat", "dog")
    with LMDBDataset(place) as one, LMDBDataset(second) as two:
        chain: ConcatDataset[Any] = ConcatDataset(
            [Subset(two, [3, 1]), ConcatDataset([one, two]), Subset(ConcatDataset([one, two]), [-1, 0])]
        )
        manifest = write_store(chain, out)
    a, b = facts_of(place), facts_of(second)
    assert facts_of(out) == [b[3], b[1], *a, *b, b[3], a[0]]
    assert manifest.classes == ("cat", "dog")
    assert (manifest.source["check"], "path" in manifest.source) == ("decode", False)  # options that all datasets share
    with open_store(out) as store:
        assert store.verify() == manifest.digest


class Turned(Subset[Any]):
    """A user's subclass of Subset that changes the samples."""

    @override
    def __getitem__(self, index: Any) -> Any:
        image, label = self.dataset[self.indices[index]]
        return image.rotate(180), label

    @override
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Own(LMDBDataset):
    @override
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image.rotate(180), label


def test_transformed_samples_are_stored_as_samples(place: Path, out: Path) -> None:
    plain = LMDBDataset(place)
    datasets: list[Any] = [LMDBDataset(place, rotate), Turned(plain, range(9)), Own(place)]
    for changed in datasets:
        write_store(changed, out, overwrite=True)
        for at, record in enumerate(records(out)):
            assert (record.format, record.name) == ("PNG", None)
            assert isinstance(record.image, bytes)
            assert decode_pil(record.image).tobytes() == rotate(plain[at][0]).tobytes()
    with pytest.warns(UserWarning, match="has a target_transform, so its classes may not name its labels"):
        write_store(LMDBDataset(place, target_transform=lambda label: 1 - label), out, overwrite=True)
    assert [record.label for record in records(out)] == [1 - label for label in plain.targets.tolist()]
    with pytest.raises(FieldError, match=r"an array of the shape \(3, 30, 40\), with its channels first"):
        write_store(Subset(LMDBDataset(place, decode=DecodeTensor()), [0]), out, overwrite=True)


def test_write_store_of_a_dataset_applies_every_given_option(place: Path, out: Path) -> None:
    with LMDBDataset(place) as dataset:
        manifest = write_store(dataset, out, image_format="PNG")
        assert (manifest.formats, manifest.named, manifest.source) == ({"PNG": 9}, 0, {"kind": "samples"})
        manifest = write_store(Subset(dataset, [1, 2]), out, fields=("photo", "target"), overwrite=True)
        assert (manifest.fields, manifest.formats) == ({"target": 2}, {"PNG": 2})  # photo is a usual name of the image
        assert [(r.label, r.fields["target"]) for r in records(out)] == [(None, dataset[at][1]) for at in (1, 2)]
        with pytest.raises(FieldError, match="it has 2 items, but fields has 1 name:"):
            write_store(dataset, out, fields=("image",), overwrite=True)
        manifest = write_store(dataset, out, fields=["image", "label"], overwrite=True)  # the default
        assert manifest.digest == dataset.manifest.digest


def test_write_store_copies_only_the_fields_of_a_dataset(place: Path, out: Path) -> None:
    with LMDBDataset(place, fields=("image", "caption")) as dataset:
        write_store(dataset, out)
    for copy, record in zip(records(out), records(place), strict=True):
        assert (copy.image, copy.fields, copy.width, copy.format) == (
            record.image, {"caption": record.fields["caption"]}, record.width, record.format,
        )  # fmt: skip
        assert (copy.name, copy.label) == (None, None)
    indices = LMDBDataset(place, fields=("label", "index"))
    with indices, pytest.raises(FieldError, match="'index' is a reserved field"):
        write_store(indices, out, overwrite=True)


def rotate(image: Image.Image) -> Image.Image:
    return image.rotate(180)


def test_copied_record_with_kept_damage_stays_marked(tmp_path: Path, out: Path) -> None:
    root = plant(tmp_path / "images", {"cat/0.jpg": photo(), "cat/1.jpg": photo()[:700]})
    convert(root, tmp_path / "first.lmdb", on_damaged="keep")
    with LMDBDataset(tmp_path / "first.lmdb") as dataset:
        assert write_store(dataset, out).digest == dataset.manifest.digest
    with LMDBDataset(out) as dataset, pytest.raises(DamagedImageError, match="was stored damaged"):
        dataset[1]


# Classes


def test_chained_stores_of_different_classes_are_refused(place: Path, out: Path, tmp_path: Path) -> None:
    with LMDBDataset(place) as one, LMDBDataset(other(tmp_path, "cat", "dog", "eel")) as two:
        both: ConcatDataset[Any] = ConcatDataset([one, two])
        for chain in (both, Subset(both, [0]), DataLoader(both)):
            with pytest.raises(OptionError, match=r"different classes, \('cat', 'dog'\) and \('cat', 'dog', 'eel'\)"):
                write_store(chain, out)
        assert not out.exists()
        manifest = write_store(both, out, classes=("cat", "dog", "eel"))
        assert (manifest.length, manifest.classes) == (len(one) + len(two), ("cat", "dog", "eel"))


def test_plan_with_a_password_is_private(place: Path, tmp_path: Path, mongo_uri: str) -> None:
    convert(tmp_path / "images", mongo_uri, listing=tmp_path / "list.csv")
    plan = plan_conversion(mongo_uri, tmp_path / "planned.lmdb", 1)
    assert (plan.folder / "plan.bson").stat().st_mode & 0o007 == 0
