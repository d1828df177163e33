"""write_store stores the image files behind Hugging Face's datasets, and keeps their class names."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from dbloader import LMDBDataset, PrefetchLoader, convert, write_store
from dbloader.errors import DamagedImageError, FieldError, OptionError
from dbloader.records.record import Record
from tests.support.conversion import records as store_records
from tests.support.images import photo, picture, plant
from tests.support.samples import image_of

# A DataLoader's worker is forked while pyarrow has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

JPEGS = [photo(seed) for seed in range(6)]
PNG = picture("PNG")
FINE, COARSE = ["cat", "dog", "ant"], ["pet", "insect"]
LABELS = [0, 2, 1, -1, 0, 1]


def cifar(paths: list[str] | None = None) -> Dataset:
    """Return a dataset with the columns of CIFAR-100 on the Hub, and a mask."""
    features = Features(
        img=datasets.Image(), fine_label=ClassLabel(names=FINE), coarse_label=ClassLabel(names=COARSE),
        mask=datasets.Image(), parts=List({"kind": ClassLabel(names=["tail"])}), score=Value("float64"),
    )  # fmt: skip
    rows = [
        {
            "img": paths[at] if paths else {"bytes": JPEGS[at], "path": f"{at}.jpg"},
            "fine_label": LABELS[at], "coarse_label": at % 2, "mask": {"bytes": PNG, "path": None},
            "parts": [{"kind": 0}] * (at % 3), "score": at / 2,
        }
        for at in range(6)
    ]  # fmt: skip
    return Dataset.from_list(rows, features)


def stored(samples: Any, place: Path, **options: Any) -> list[Record]:
    with pytest.warns(UserWarning, match="the columns"):  # there are two columns of images, and two of labels
        write_store(samples, place, overwrite=place.exists(), **options)
    return store_records(place)


@pytest.mark.parametrize(
    "source",
    [
        lambda dataset: dataset,
        lambda dataset: dataset.with_format("torch"),
        lambda dataset: dataset.to_iterable_dataset(),
        lambda dataset: Subset(dataset, range(6)),
        lambda dataset: ConcatDataset([dataset.select(range(2)), Subset(dataset, [2, 3, 4, 5])]),
        lambda dataset: DataLoader(dataset, 4, num_workers=1),
        lambda dataset: PrefetchLoader(DataLoader(dataset, 4)),
        lambda dataset: dataset.cast_column("img", datasets.Image(decode=False)),
    ],
)
def test_hugging_face_files_and_class_names_are_stored(tmp_path: Path, source: Callable[[Any], Any]) -> None:
    records = stored(source(cifar()), tmp_path / "s.lmdb")
    assert [record.image for record in records] == JPEGS
    assert [record.name for record in records] == [f"{at}.jpg" for at in range(6)]
    assert [record.label for record in records] == [0, 2, 1, None, 0, 1]
    assert all(record.fields["mask"] == PNG for record in records)
    assert [record.fields["coarse_label"] for record in records] == [0, 1] * 3
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        manifest = dataset.manifest
        assert (dataset.classes, manifest.file_fields, manifest.formats) == (FINE, ("mask",), {"JPEG": 6})
        assert manifest.field_classes == {"coarse_label": COARSE, "parts.kind": ["tail"]}
        assert dataset[1][0].tobytes() == Image.open(io.BytesIO(JPEGS[1])).tobytes()


def test_paths_of_hugging_face_are_read(tmp_path: Path) -> None:
    root = plant(tmp_path / "images", {f"{at}.jpg": data for at, data in enumerate(JPEGS)})
    records = stored(cifar([str(root / f"{at}.jpg") for at in range(6)]), tmp_path / "s.lmdb")
    assert [(record.name, record.image) for record in records] == [(f"{at}.jpg", JPEGS[at]) for at in range(6)]
    dataset = cifar([str(root / f"{at}.jpg") for at in range(6)])
    (root / "4.jpg").unlink()
    with pytest.raises(FieldError, match=r"^sample 4: field 'image': its file .*4\.jpg cannot be read: "):
        stored(dataset, tmp_path / "t.lmdb")


def test_options_of_the_user_replace_the_meaning_of_columns(tmp_path: Path) -> None:
    records = stored(cifar(), tmp_path / "s.lmdb", classes=("a", "b", "c"), file_fields=("mask",))
    assert [record.image for record in records] == JPEGS
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        assert dataset.classes == ["a", "b", "c"]
    records = stored(cifar(), tmp_path / "s.lmdb", image_format="JPEG", quality=30)
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        assert (dataset.classes, dataset.manifest.formats) == (FINE, {"JPEG": 6})
    assert all(len(record.image or b"") < len(jpeg) for record, jpeg in zip(records, JPEGS, strict=True))


def one(image: Any, **columns: Any) -> Dataset:
    features = Features({"img": datasets.Image(**columns), "labels": Value("int64")})
    return Dataset.from_list([{"img": image, "labels": -1}], features)


def test_integers_without_names_are_labels_as_they_are(tmp_path: Path) -> None:
    write_store(one({"bytes": JPEGS[0], "path": None}), tmp_path / "s.lmdb")
    (record,) = store_records(tmp_path / "s.lmdb")
    assert (record.label, record.name, record.fields) == (-1, None, {})


def test_mode_of_a_column_is_applied(tmp_path: Path) -> None:
    write_store(one({"bytes": JPEGS[0], "path": None}, mode="L"), tmp_path / "s.lmdb")
    (record,) = store_records(tmp_path / "s.lmdb")
    assert image_of(record).mode == "L"


def test_damaged_file_of_hugging_face_is_an_error_that_names_it(tmp_path: Path) -> None:
    cut = {"bytes": JPEGS[0][:-200], "path": "a/cut.jpg"}
    with pytest.raises(DamagedImageError, match=r"^sample 0: field 'image': its file a/cut\.jpg cannot be read: "):
        write_store(one(cut), tmp_path / "s.lmdb")
    assert list(tmp_path.iterdir()) == []


def rotated(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "img": [image.rotate(180) for image in rows["img"]]}


def test_transform_of_hugging_face_is_applied_with_a_warning(tmp_path: Path) -> None:
    dataset = one({"bytes": JPEGS[0], "path": None})
    with pytest.warns(UserWarning, match=r"stored as its transform makes them: samples\.with_format.*, or convert\(\)"):
        write_store(dataset.with_transform(rotated), tmp_path / "s.lmdb")
    (record,) = store_records(tmp_path / "s.lmdb")
    assert image_of(record).tobytes() == dataset[0]["img"].rotate(180).tobytes()


def test_dict_of_splits_is_an_error_that_says_to_choose(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"got DatasetDict: .*such as samples\['train'\]"):
        write_store(datasets.DatasetDict(train=cifar()), tmp_path / "s.lmdb")


def test_column_of_the_image_must_be_clear(tmp_path: Path) -> None:
    features = Features(left=datasets.Image(), right=datasets.Image())
    pairs = Dataset.from_list([{side: {"bytes": PNG, "path": None} for side in features}], features)
    with pytest.raises(OptionError, match="which column is the image\\? It may be any of left, right: call it 'image'"):
        write_store(pairs, tmp_path / "s.lmdb")
    assert write_store(pairs, tmp_path / "s.lmdb", require_images=False).file_fields == ("left", "right")
    assert stored(pairs.rename_column("left", "Image"), tmp_path / "t.lmdb")[0].image == PNG


def test_text_column_called_image_is_kept_beside_the_image(tmp_path: Path) -> None:
    features = Features(image=Value("string"), picture=datasets.Image())
    dataset = Dataset.from_list([{"image": "https://a/b.png", "picture": {"bytes": PNG, "path": None}}], features)
    write_store(dataset, tmp_path / "s.lmdb")
    (record,) = store_records(tmp_path / "s.lmdb")
    assert (record.image, record.fields) == (PNG, {"image_": "https://a/b.png"})


def test_different_class_names_of_a_field_are_an_error(tmp_path: Path) -> None:
    def part(*names: str) -> Dataset:
        features = Features(image=datasets.Image(), age=ClassLabel(names=[*names]), label=Value("int64"))
        return Dataset.from_list([{"image": {"bytes": PNG, "path": None}, "age": 0, "label": 0}], features)

    assert write_store(ConcatDataset([part("young", "old"), part("young", "old")]), tmp_path / "s.lmdb").length == 2
    with pytest.raises(OptionError, match="two datasets have different class names for the field 'age': rename one"):
        write_store(ConcatDataset([part("young", "old"), part("old", "young")]), tmp_path / "t.lmdb")


def test_own_collate_fn_gets_images_and_class_names_are_kept(tmp_path: Path) -> None:
    features = Features(image=datasets.Image(), label=ClassLabel(names=FINE), width=Value("int64"))
    rows = [{"image": {"bytes": PNG, "path": None}, "label": 2, "width": 40}]
    collate: Any = turned
    loader = DataLoader(Dataset.from_list(rows, features), batch_size=None, collate_fn=collate)
    manifest = write_store(loader, tmp_path / "s.lmdb")
    (record,) = store_records(tmp_path / "s.lmdb")
    assert (manifest.classes, record.label, record.format, record.width) == (tuple(FINE), 2, "PNG", 40)
    assert image_of(record).tobytes() == Image.open(io.BytesIO(PNG)).rotate(180).tobytes()


def turned(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "image": sample["image"].rotate(180)}


def test_images_that_datasets_shows_upright_are_stored_turned_with_a_warning(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the orientation
    file = io.BytesIO()
    Image.open(io.BytesIO(JPEGS[0])).save(file, "JPEG", exif=exif)
    rows = Dataset.from_dict({"image": [{"bytes": file.getvalue(), "path": None}]})
    with pytest.warns(UserWarning, match="datasets shows them upright.*exif_transpose=True"):
        write_store(rows.cast_column("image", datasets.Image()), tmp_path / "s.lmdb")
    assert [record.image for record in store_records(tmp_path / "s.lmdb")] == [file.getvalue()]


@pytest.mark.parametrize("column", ["labels", "diseases"])
def test_column_of_several_classes_is_the_target_as_from_convert(tmp_path: Path, column: str) -> None:
    kinds = Features({"image": datasets.Image(), column: List(ClassLabel(names=["a", "b", "c"]))})
    rows = {"image": [{"bytes": jpeg, "path": None} for jpeg in JPEGS[:3]], column: [[2, 0], [], [1]]}
    if column == "diseases":  # numbers such as an embedding are no classes
        kinds["embedding"], rows["embedding"] = List(Value("float32")), [[0.5, 1.5]] * 3
    dataset = Dataset.from_dict(rows, kinds)
    write_store(dataset, tmp_path / "written.lmdb")
    dataset.save_to_disk(tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "converted.lmdb", progress=None)
    for name in ("written", "converted"):
        with LMDBDataset(tmp_path / f"{name}.lmdb") as samples:
            assert samples.classes == ["a", "b", "c"]
            assert [samples[at][1].tolist() for at in range(3)] == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_list_of_classes_beside_another_list_stays_a_field(tmp_path: Path) -> None:
    kinds = Features({"image": datasets.Image(), "tags": List(ClassLabel(names=["a"])), "texts": List(Value("string"))})
    rows = {"image": [{"bytes": JPEGS[0], "path": None}], "tags": [[0]], "texts": [["x", "y"]]}
    write_store(Dataset.from_dict(rows, kinds), tmp_path / "s.lmdb")
    (record,) = store_records(tmp_path / "s.lmdb")
    assert record.fields == {"tags": [0], "texts": ["x", "y"]}
