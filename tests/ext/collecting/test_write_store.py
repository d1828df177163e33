"""write_store takes samples from lists, generators, datasets and stores."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from dbloader import LMDBDataset, PrefetchLoader, Record, open_store, write_store
from dbloader.errors import FieldError, OptionError, StoreNotFoundError
from dbloader.ext.sources.labels import IMAGE_NAMES
from tests.ext.collecting.written import written
from tests.support.images import photo
from tests.support.samples import IMAGE, Items, Stream, noise, same


@pytest.mark.parametrize(
    ("samples", "kind"),
    [({"image": [IMAGE]}, "dict"), ("folder/", "str"), (IMAGE, "bytes"), (Record(), "Record"), (noise("L"), "Image")],
)
def test_write_store_refuses_anything_but_iterables_of_samples(tmp_path: Path, samples: Any, kind: str) -> None:
    message = rf"^samples must be an iterable .* got {kind}: put a single sample into a list.*convert\(\)$"
    with pytest.raises(OptionError, match=message):
        written(samples, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    [
        lambda items: items,
        lambda items: TensorDataset(torch.tensor(np.stack([image for image, _ in items])), torch.arange(len(items))),
        lambda items: (item for item in items),
        Items,
        Stream,
        lambda items: ConcatDataset([Items(items[:3]), Items(items[3:])]),
        lambda items: DataLoader(Items(items), batch_size=4),
        lambda items: DataLoader(Items(items), batch_size=None),
        lambda items: DataLoader(Stream(items), batch_size=4),
        lambda items: PrefetchLoader(DataLoader(Items(items), batch_size=4)),
    ],
)
def test_samples_come_from_any_iterable_dataset_or_loader(tmp_path: Path, source: Callable[[Any], Any]) -> None:
    items = [(np.full((2, 3), index, np.float32), index) for index in range(10)]
    records = written(source(items), tmp_path)
    assert [record.label for record in records] == list(range(10))
    assert [record.index for record in records] == list(range(10))
    for record, (array, _) in zip(records, items, strict=True):
        assert same(record.image, array)


def test_empty_iterable_makes_an_empty_store_and_overwrites_nothing(tmp_path: Path) -> None:
    assert write_store([], tmp_path / "empty.lmdb", classes=("a",)).length == 0
    (tmp_path / "empty.lmdb").unlink()
    place, used_up = tmp_path / "s.lmdb", iter([{"x": 1}])
    manifest = write_store([{"x": at} for at in range(5)], place, require_images=False)
    next(used_up)
    with pytest.raises(OptionError, match=r"there are no samples \(.*\), so .*s\.lmdb is not overwritten"):
        write_store(used_up, place, overwrite=True)
    with open_store(place) as store:
        assert store.verify() == manifest.digest
    assert [path.name for path in tmp_path.iterdir()] == ["s.lmdb"]


# Classes


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(["a", "b"], ("a", "b")), (None, ()), ("ab", ()), ([("tench", "Tinca tinca"), ("goldfish",)], ()), ({"a": 0}, ())],
)
def test_class_names_are_taken_from_the_dataset(tmp_path: Path, classes: Any, expected: Any) -> None:
    dataset = Items([(IMAGE, 0)], classes=classes)
    assert write_store(dataset, tmp_path / "s.lmdb").classes == expected
    assert write_store(dataset, tmp_path / "given.lmdb", classes=["x", "y"]).classes == ("x", "y")


def test_class_names_are_taken_from_the_dataset_in_a_loader_or_subset(tmp_path: Path) -> None:
    names = ("a", "b")
    dataset = Items([(IMAGE, at % 2) for at in range(4)], classes=list(names))
    other = Items([(IMAGE, 0)], classes=["c"])
    for number, (source, expected) in enumerate(
        [
            (DataLoader(dataset), names),
            (DataLoader(Subset(Subset(dataset, [0, 1]), [1]), 2), names),
            (PrefetchLoader(DataLoader(dataset)), names),
            (ConcatDataset([dataset, Subset(dataset, [0])]), names),
            ([(IMAGE, 0)], ()),
        ]
    ):
        assert write_store(source, tmp_path / f"{number}.lmdb").classes == expected
    message = r"different classes, \('a', 'b'\) and \('c',\): give names that are right for all"
    with pytest.raises(OptionError, match=message):
        write_store(ConcatDataset([dataset, other]), tmp_path / "mixed.lmdb")


def test_class_names_as_labels_are_stored_as_integers(tmp_path: Path) -> None:
    samples: list[Any] = [(IMAGE, "dog"), (IMAGE, 2), (IMAGE, None), Record(label="cat")]  # type: ignore[arg-type]
    loader = DataLoader(Items(samples), 2, num_workers=1)
    for source in (samples, Items(samples, classes=["dog", "cat", "ant"]), loader):
        classes = None if hasattr(source, "classes") else ("dog", "cat", "ant")
        labels = [record.label for record in written(source, tmp_path, classes=classes)]
        assert labels == [0, 2, None, 1]
    assert samples[3].label == "cat"


@pytest.mark.parametrize(
    ("classes", "label", "message"),
    [
        (("a", "b"), 2, r"label 2 is none of the classes \(0 to 1\): .* or classes=\(\) to store labels"),
        (("a", "b"), -1, "label -1 is none of the classes"),
        (("a", "b"), "c", "label 'c' is none of the classes: give all names in the order of their labels"),
        (None, "c", "label 'c' is none of the classes: give all names"),
        (("c", "b", "c"), "c", "label 'c' is the name of several classes: give labels as ints"),
    ],
)
def test_error_names_the_sample_whose_label_is_no_class(tmp_path: Path, classes: Any, label: Any, message: str) -> None:
    with pytest.raises(FieldError, match=f"^sample 1: {message}"):
        written([(IMAGE, 0), (IMAGE, label)], tmp_path, classes=classes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_failed_source_leaves_nothing_at_the_place(tmp_path: Path, error: type[BaseException]) -> None:
    def samples() -> Iterator[Any]:
        yield IMAGE, 1
        raise error("the source broke")

    with pytest.raises(error, match="the source broke"):
        write_store(samples(), tmp_path / "s.lmdb")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        LMDBDataset(tmp_path / "s.lmdb")


@pytest.mark.parametrize("image", [np.zeros((3, 5, 4), np.uint8), torch.zeros(3, 5, 4, dtype=torch.uint8)])
def test_pixels_with_channels_first_are_refused(tmp_path: Path, image: Any) -> None:
    with pytest.raises(FieldError, match=r"sample 0: .* its channels first, .*: give image\.transpose\(1, 2, 0\)"):
        write_store([(image, 1)], tmp_path / "x.lmdb")
    for other in (image[:, :, :3], image.astype("f4") if isinstance(image, np.ndarray) else image.float()):
        write_store([(other, 1)], tmp_path / "x.lmdb", overwrite=(tmp_path / "x.lmdb").exists())


# Images


@pytest.mark.parametrize("name", [*IMAGE_NAMES, "IMG", "Image"])
def test_field_with_a_usual_name_is_the_image(tmp_path: Path, name: str) -> None:
    array = np.full((9, 7), 0.5, np.float32)
    for image in (IMAGE, noise("RGB"), array, torch.tensor(array), {"bytes": IMAGE, "path": "cat/1.png"}):
        samples = [{name: image, "label": 1}, {"caption": "without an image"}]
        for source in (samples, DataLoader(Items(samples), 1, num_workers=0)):
            first, second = written(source, tmp_path)
            assert first.image is not None
            assert (first.label, first.fields, second.image) == (1, {}, None)
    assert first.name == "cat/1.png"
    same_name, _ = written([(IMAGE, 1), ()], tmp_path, fields=(name, "target"))
    assert same_name.image == IMAGE


def test_no_other_field_becomes_the_image_if_images_are_not_required(tmp_path: Path) -> None:
    (record,) = written([{"img": IMAGE, "label": 1}], tmp_path, require_images=False)
    assert (record.image, record.fields) == (None, {"img": IMAGE})


def test_field_named_image_is_the_image_beside_other_images(tmp_path: Path) -> None:
    (record,) = written([{"img": noise("RGB"), "image": IMAGE, "jpg": b"x"}], tmp_path)
    assert record.image == IMAGE
    assert record.fields.keys() == {"img", "jpg"}


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ({"foto": noise("RGB"), "label": 1}, "'foto'"),
        ({"scan_a": IMAGE, "scan_b": bytearray(IMAGE)}, "'scan_a', 'scan_b'"),
        ({"jpg": IMAGE, "png": IMAGE}, "'jpg', 'png'"),
        ({"img": "cat.jpg", "x": {"bytes": IMAGE, "path": None}}, "'x'"),
    ],
)
def test_unclear_image_is_an_error_at_the_first_sample(tmp_path: Path, sample: Any, names: str) -> None:
    message = rf"^sample 0: which field is the image\? It may be any of {names}: call it 'image', or give 'image': None"
    with pytest.raises(FieldError, match=message):
        written([sample, {"image": IMAGE}], tmp_path)
    (first, _) = written([{**sample, "image": None}, {"image": IMAGE}], tmp_path)
    assert first.image is None


@pytest.mark.parametrize(
    ("first", "second"), [("image", "img"), ("img", "image"), ("img", "jpg"), ("img", "IMG"), ("photo", "image_bytes")]
)
@pytest.mark.parametrize("wrap", [list, lambda items: DataLoader(Items(items), 2, num_workers=0)])
def test_image_in_another_field_than_before_is_an_error(
    tmp_path: Path, first: str, second: str, wrap: Callable[[Any], Any]
) -> None:
    samples: list[dict[str, Any]] = [{"caption": "none"}, {first: IMAGE}, {first: IMAGE, "label": 1}, {second: IMAGE}]
    message = (
        rf"^sample 3: its image is in the field '{second}', but earlier samples have it in '{first}': call the "
        "field 'image' in all samples, and give 'image': None if a sample has no image$"
    )
    with pytest.raises(FieldError, match=message):
        written(wrap(samples), tmp_path)
    assert list(tmp_path.iterdir()) == []
    named = [{"image": next(filter(None, (sample.get(first), sample.get(second))), None)} for sample in samples]
    assert [record.image for record in written(wrap(named), tmp_path)] == [None, IMAGE, IMAGE, IMAGE]


def test_thumbnail_never_becomes_the_image_of_a_sample_without_one(tmp_path: Path) -> None:
    thumb = noise("RGB")
    for whole in ({"image": IMAGE, "img": thumb}, Record(image=IMAGE), (IMAGE, 1), IMAGE, {"image": None}):
        with pytest.raises(
            FieldError, match=r"sample 1: its image is in the field 'img', .* samples have it in 'image'"
        ):
            written([whole, {"img": thumb}], tmp_path)
    _, second = written([{"image": IMAGE, "img": thumb}, {"img": thumb, "image": None}], tmp_path)
    assert second.image is None
    assert [*second.fields] == ["img"]


def test_store_without_an_image_must_be_asked_for(tmp_path: Path) -> None:
    place = tmp_path / "s.lmdb"
    for samples in ([{"x": 1}], [{"image": None}], [{"img": "cat.jpg"}], [Record(label=1)], [(None, 1)], [()]):
        with pytest.raises(OptionError, match=r"^no sample has an image, .*: call .* 'image', or pass require"):
            write_store(samples, place)
        assert list(tmp_path.iterdir()) == []
        assert write_store(samples, place, require_images=False).length == 1
        with LMDBDataset(place, fields=("label",)) as dataset:  # a copy may have no images, as its source
            assert write_store(dataset, tmp_path / "copy.lmdb").length == 1
        for path in tmp_path.iterdir():
            path.unlink()
    masks = [{"mask": IMAGE}]
    assert write_store(masks, place, file_fields=("mask",), require_images=False).file_fields == ("mask",)
    with pytest.raises(TypeError, match="require_images must be True or False, got 'no'"):
        write_store([], tmp_path / "t.lmdb", require_images="no")  # type: ignore[arg-type]


PHOTO = Image.open(io.BytesIO(photo()))  # Pillow keeps the format of a file
LARGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8))


@pytest.mark.parametrize("image", [PHOTO, LARGE])
def test_photographs_as_png_are_a_warning_that_names_convert(tmp_path: Path, image: Image.Image) -> None:
    with pytest.warns(UserWarning, match=r"photographs are stored as PNG, .* use convert\(\), or give"):
        written([(image, 1)], tmp_path)
    for image_format in ("PNG", "JPEG"):  # the user has chosen the format
        (record,) = written([(image, 1)], tmp_path, image_format=image_format)
        assert record.format == image_format
    written([{"image": IMAGE, "mask": image}], tmp_path)  # a mask must not lose a bit


def test_record_without_an_image_does_not_decide_the_field_of_the_image(tmp_path: Path) -> None:
    first, second = written([Record("a", 0), {"img": Image.new("RGB", (4, 4)), "label": 1}], tmp_path)
    assert (first.image, second.format) == (None, "PNG")


def test_image_of_a_png_file_is_stored_as_png_without_a_warning(tmp_path: Path) -> None:
    file = io.BytesIO()
    LARGE.save(file, "PNG")
    (record,) = written([(Image.open(file), 1)], tmp_path)
    assert record.format == "PNG"


def test_single_split_must_be_chosen_of_a_dict_of_datasets(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"got dict: .* choose a dataset, such as samples\['train'\]"):
        written({"train": [(IMAGE, 1)]}, tmp_path)


@pytest.mark.parametrize(
    ("dtype", "depth"), [("u1", "8-bit"), ("<u2", "16-bit"), ("i1", "8-bit signed"), ("<f4", "32-bit float")]
)
def test_write_store_counts_the_depth_of_pixels(dtype: str, depth: str, tmp_path: Path) -> None:
    manifest = write_store([(np.zeros((4, 5, 3), dtype), 0)] * 2, tmp_path / "s.lmdb")
    assert manifest.depths == {depth: 2}
