"""LMDBDataset has the samples and attributes of torchvision's ImageFolder."""

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset
from typing_extensions import override

from dbloader import LMDBDataset, Record, convert
from dbloader.decoding import decode_pil
from dbloader.errors import DamagedImageError, LoaderError, OptionError, PlaceError
from dbloader.records.columns import NO_LABEL
from dbloader.stores.lmdb.keys import RECORDS, record_key
from tests.contracts.dataset import DatasetContract, make
from tests.support.images import encoded
from tests.support.lmdb_files import tamper_with_records, value_at
from tests.support.stores import store_samples


def noise(mode: str, *, size: tuple[int, int] = (23, 17), seed: int = 0) -> Image.Image:
    random = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(random.integers(0, 2**16, size[::-1], np.uint16))
    rgb = Image.fromarray(random.integers(0, 256, (*size[::-1], 3), np.uint8))
    if mode == "RGBA":
        rgb.putalpha(Image.fromarray(random.integers(0, 256, size[::-1], np.uint8)))
    return rgb if rgb.mode == mode else rgb.convert(mode)


CLASSES = ["Bee", "ant", "nothing inside", "zebra"]
IMAGES = {  # the names in the order of ImageFolder, and the modes
    "Bee/10.jpg": "RGB",
    "Bee/9.jpg": "RGB",
    "Bee/x.bmp": "P",
    "Bee/x.pgm": "L",
    "Bee/x.ppm": "RGB",
    "Bee/x.tif": "I;16",
    "Bee/x.tiff": "CMYK",
    "ant/16 bit.png": "I;16",
    "ant/palette.png": "P",
    "ant/rgba.PNG": "RGBA",
    "ant/transparent palette.gif.png": "P",
    "ant/b/gray with alpha.png": "LA",
    "ant/b/é.webp": "RGB",
    "ant/b-c/one bit.png": "1",
    "zebra/cmyk.jpg": "CMYK",
    "zebra/gray.jpeg": "L",
    "zebra/rgb.jpg": "RGB",
}
NAMES = list(IMAGES)
LABELS = [CLASSES.index(name.partition("/")[0]) for name in NAMES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder with images of every mode."""
    root = tmp_path_factory.mktemp("folder")
    for seed, (name, mode) in enumerate(IMAGES.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"transparency": 3} if "transparent" in name else {}
        noise(mode, seed=seed).save(path, **options)
    (root / "ant/notes.txt").write_text("no image")
    (root / "nothing inside").mkdir()
    return root


@pytest.fixture(scope="module")
def place(folder: Path) -> Path:
    """A store converted from the folder."""
    place = folder.with_name("store.lmdb")
    convert(folder, place)
    return place


def loaded(path: Path) -> Image.Image:
    """Load an image as ImageFolder does."""
    with Image.open(path) as image:
        if image.mode == "I;16":  # torchvision turns these pixels white, and dbloader keeps the upper bits
            return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
        return image.convert("RGB")


def small(place: Path, length: int = 10, **fields: Any) -> Path:
    """Write a store with images of the color (index, 0, 0) and labels index % 3."""
    records = (
        Record(f"{index}.png", index % 3, encoded(Image.new("RGB", (4, 3), (index, 0, 0)), "PNG"), fields=dict(fields))
        for index in range(length)
    )
    store_samples(records, place, classes=("a", "b", "c"))
    return place


def every(dataset: Dataset[Any]) -> list[Any]:
    """Return all samples by iterating over indices. Type checkers do not know this protocol."""
    return list(dataset)  # type: ignore[call-overload,no-any-return]


def same_pixels(one: Image.Image, other: Image.Image) -> bool:
    return one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make(tmp_path_factory.mktemp("stored") / "s.lmdb"))


class TestLMDBDataset(DatasetContract):
    kind = LMDBDataset

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Path:
        return tmp_path / "fresh.lmdb"

    @override
    def damage(self, place: Path, index: int) -> None:
        document = bytearray(value_at(place, RECORDS, record_key(index)))
        document[len(document) // 2] ^= 1
        tamper_with_records(place, {index: bytes(document)})


def test_each_item_equals_image_folder(folder: Path, place: Path) -> None:
    with LMDBDataset(place) as dataset:
        assert len(dataset) == len(NAMES)
        for index, name in enumerate(NAMES):
            image, label = dataset[index]
            assert isinstance(image, Image.Image)
            assert same_pixels(image, loaded(folder / name)), name
            assert (type(label), label) == (int, LABELS[index])


def test_classes_names_and_targets_equal_image_folder(place: Path) -> None:
    with LMDBDataset(place) as dataset:
        assert dataset.classes == CLASSES
        assert type(dataset.classes) is list
        assert dataset.class_to_idx == {name: label for label, name in enumerate(CLASSES)}
        assert type(dataset.class_to_idx) is dict
        dataset.classes.append("another")  # the attribute returns a new list each time
        assert len(dataset.classes) == 4
        assert list(dataset.names) == NAMES
        assert dataset.targets.tolist() == LABELS
        assert repr(dataset.samples) == "<17 samples (name, label), packed>"
        assert [dataset.find(name) for name in NAMES] == list(range(17))


def test_image_stored_as_an_array_is_not_decoded(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    store_samples([(array, 1)], tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        image, label = dataset[0]
        assert (image.dtype, image.tolist(), label) == (np.float32, array.tolist(), 1)
        image[:] = 0  # a copy
        assert dataset[0][0].tolist() == array.tolist()
    with LMDBDataset(tmp_path / "s.lmdb", transform=np.sum) as dataset:
        assert dataset[0][0] == array.sum()


def failing(error: BaseException) -> Callable[[Any], Any]:
    def fail(_: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("where", ["transform", "target_transform", "decode"])
def test_exception_in_a_sample_gets_a_note_with_the_record(place: Path, where: str) -> None:
    error = ZeroDivisionError("by zero")
    with LMDBDataset(place) as dataset:
        setattr(dataset, where, failing(error))
        with pytest.raises(ZeroDivisionError, match=r"^by zero") as raised:
            dataset[3]
        assert raised.value is error
        assert error.__notes__ == [f"in record 3 ({NAMES[3]}) of {place}"]


class Stopping(LMDBDataset):
    @override
    def __getitem__(self, index: int) -> Any:
        return next(iter([]))


def stop(_: Any) -> Any:
    return next(iter([]))


@pytest.mark.parametrize("how", ["transform", "target_transform", "decode", "subclass"])
def test_stop_iteration_in_a_sample_is_an_error(how: str, tmp_path: Path) -> None:
    """torch's DataLoader would take StopIteration for the end of the epoch."""
    path = small(tmp_path / "small.lmdb", 3)
    message = rf"while (sample|record) \d+( \(.*\))? of {re.escape(str(path))} was made, and would silently end"
    options: Any = {} if how == "subclass" else {how: stop}
    with (Stopping if how == "subclass" else LMDBDataset)(path, **options) as dataset:
        with pytest.raises(LoaderError, match=message):
            dataset.__getitems__([1])
        with pytest.raises(LoaderError, match=message):
            list(DataLoader(dataset, 2, collate_fn=list))


def test_missing_field_is_none_and_calls_no_transform(tmp_path: Path) -> None:
    store_samples([{"image": b"x"}, {"label": 1, "caption": "words"}, {}], tmp_path / "s.lmdb")
    fields = ("image", "label", "caption", "name", "width", "height", "format", "damaged", "resized_from", "index")
    with LMDBDataset(tmp_path / "s.lmdb", bytes.decode, str, decode=None, fields=fields) as dataset:
        nothing = dict.fromkeys(fields)
        assert dataset.__getitems__([0, 1, 2]) == [
            {**nothing, "image": "x", "index": 0},
            {**nothing, "label": "1", "caption": "words", "index": 1},
            {**nothing, "index": 2},
        ]


def test_missing_label_is_none_in_a_store_with_labels(tmp_path: Path) -> None:
    image = encoded(noise("L"), "PNG")
    store_samples([(image, 5), (image,), (image, None), (image, -5)], tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb", target_transform=lambda label: label + 1) as dataset:
        assert [label for _, label in every(dataset)] == [6, None, None, -4]
        assert dataset.targets.tolist() == [5, NO_LABEL, NO_LABEL, -5]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with a complete image, and with a truncated image that on_damaged='keep' kept."""
    (tmp_path / "folder/a").mkdir(parents=True)
    data = encoded(noise("RGB", size=(200, 100)), "JPEG")
    (tmp_path / "folder/a/cut.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "folder/a/whole.jpg").write_bytes(data)
    convert(tmp_path / "folder", tmp_path / "s.lmdb", on_damaged="keep")
    return tmp_path / "s.lmdb"


def test_image_marked_damaged_is_never_decoded(damaged: Path) -> None:
    message = rf"^record 0 \(a/cut\.jpg\) of {damaged} was stored damaged: .*on_damaged='keep'.*decode=None"
    for decode in (decode_pil, len):
        with LMDBDataset(damaged, decode=decode) as dataset:
            with pytest.raises(DamagedImageError, match=message):
                dataset[0]
            with pytest.raises(DamagedImageError, match=message):
                dataset.__getitems__([1, 0])
            assert dataset[1][1] == 0


def test_image_marked_damaged_can_be_read_as_bytes(damaged: Path) -> None:
    cut = (damaged.parent / "folder/a/cut.jpg").read_bytes()
    with LMDBDataset(damaged, decode=None, fields=("image", "damaged")) as dataset:
        assert (dataset[0]["image"], dataset[1]["damaged"]) == (cut, None)
        assert "end" in dataset[0]["damaged"]


def test_place_in_mongodb_is_refused_without_showing_its_password() -> None:
    with pytest.raises(PlaceError, match=r"^(?!.*secret).*expected the path of a file, got a place in MongoDB"):
        LMDBDataset("mongodb://user:secret@host/db.images")


class WithIndex(LMDBDataset):
    """A subclass that adds the index to each sample, as users of ImageFolder often write."""

    @override
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


def test_data_loader_returns_the_samples_of_a_dataset_subclass(tmp_path: Path) -> None:
    store_samples(((bytes([number]), number) for number in range(5)), tmp_path / "a.lmdb")
    with WithIndex(tmp_path / "a.lmdb", decode=None) as dataset:
        assert dataset[3] == (b"\x03", 3, 3)
        assert dataset.__getitems__([4, 0]) == [(b"\x04", 4, 4), (b"\x00", 0, 0)]
        batches = list(DataLoader(Subset(dataset, [2, 1]), batch_size=2, collate_fn=list))
        assert batches == [[(b"\x02", 2, 2), (b"\x01", 1, 1)]]


def test_loader_attribute_decodes_an_image_by_its_name(tmp_path: Path) -> None:
    colors = {"b/1.png": (9, 8, 7), "a.png": (1, 2, 3)}
    images = {name: encoded(Image.new("RGB", (4, 4), color), "PNG") for name, color in colors.items()}
    store_samples([Record(name, 0, data) for name, data in images.items()], tmp_path / "store.lmdb")
    with LMDBDataset(tmp_path / "store.lmdb", transform=str) as dataset:
        for name, _ in dataset.samples:
            assert dataset.loader(name).getpixel((1, 1)) == colors[name]
        with pytest.raises(KeyError, match=r"c\.png"):
            dataset.loader("c.png")
        with pytest.raises(AttributeError):  # dbloader would never call this attribute
            dataset.loader = len  # type: ignore[misc]


def test_filenames_equal_filenames_of_timm_datasets(tmp_path: Path) -> None:
    store_samples([Record("cats/1.png", 0, b"1"), Record("2.png", 0, b"2")], tmp_path / "store.lmdb")
    with LMDBDataset(tmp_path / "store.lmdb") as named:
        assert named.filenames() == ["cats/1.png", "2.png"]
        assert named.filenames(basename=True) == ["1.png", "2.png"]
        assert (named.filename(0), named.filename(-2, basename=True)) == ("cats/1.png", "1.png")
        with pytest.raises(OptionError, match=r"^absolute=True asks for paths of files, but the images are in the sto"):
            named.filenames(absolute=True)


# Transforms that have nothing to change


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A store of two images with two kinds of labels, a mask and a caption; one image has no coarse label."""
    image = encoded(noise("RGB"), "PNG")
    first = {"image": image, "label": 1, "coarse": 7, "mask": image, "caption": "a"}
    samples = [first, {**first, "label": 2, "coarse": None}]
    store_samples(samples, tmp_path / "s.lmdb", file_fields=("mask",))
    return tmp_path / "s.lmdb"


@pytest.mark.parametrize(
    ("fields", "name", "expected"),
    [
        (None, 1, ["1", "2"]),
        (("image", "label"), "label", ["1", "2"]),
        ({"pixel_values": "image", "labels": "label"}, "labels", ["1", "2"]),
        ({"image": "image", "label": "coarse"}, "label", ["7", None]),
        ({"label": "caption"}, "label", ["a", "a"]),
    ],
)
def test_target_transform_is_applied_to_the_label_of_the_sample(
    labelled: Path, fields: Any, name: Any, expected: Any
) -> None:
    with LMDBDataset(labelled, target_transform=str, fields=fields) as dataset:
        assert [sample[name] for sample in dataset.__getitems__([0, 1])] == expected
        (batch,) = DataLoader(dataset, 2, collate_fn=list)
        assert [sample[name] for sample in batch] == expected


def test_target_transform_gets_the_decoded_mask_that_is_the_label(labelled: Path) -> None:
    def size(mask: Image.Image) -> tuple[int, int]:
        return mask.size

    with LMDBDataset(labelled, target_transform=size, fields={"image": "image", "label": "mask"}) as dataset:
        assert dataset[0]["label"] == (23, 17)


NO_LABEL_FIELD = "fields= has no label: name one field 'label', or use transforms=, which gets the whole sample"


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("target_transform", ("image", "caption"), NO_LABEL_FIELD),
        ("target_transform", {"image": "image", "labels": "coarse"}, NO_LABEL_FIELD),
        ("target_transform", {"label": "coarse", "fine": "label"}, "two fields may be the label: name one field"),
        ("transform", ("label", "caption"), "transform= changes the image, but fields= has no image: add 'image'"),
    ],
)
def test_transform_without_anything_to_change_is_an_error(labelled: Path, name: str, fields: Any, message: str) -> None:
    options: dict[str, Any] = {name: str}
    with pytest.raises(OptionError, match=message):
        LMDBDataset(labelled, fields=fields, **options)
    with LMDBDataset(labelled, fields=fields) as dataset:
        setattr(dataset, name, str)  # as with ImageFolder
        with pytest.raises(OptionError, match=message):
            dataset[0]


# Idioms of ImageFolder


def test_root_and_home_name_the_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place.parent))
    for dataset in (LMDBDataset(root=place), LMDBDataset(f"~/{place.name}"), LMDBDataset(root=Path("~", place.name))):
        with dataset:
            assert dataset.root == str(place)
            assert len(dataset) == len(NAMES)
    with pytest.raises(TypeError, match="root is another name of place: give one of them"):
        LMDBDataset(place, root=place)
    with pytest.raises(TypeError, match="place must be the path of a store, got NoneType"):
        LMDBDataset()


SUBSET = r"Subset\(dataset, indices\) or where= selects records"
OTHER_LABELS = r"target_transform= changes labels, and copy_store\(labels=\)"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *[(name, SUBSET) for name in ("samples", "imgs", "names")],
        *[(name, OTHER_LABELS) for name in ("targets", "classes", "class_to_idx")],
        ("loader", "decode= takes the bytes of each file"),
    ],
)
def test_attribute_that_cannot_be_changed_names_the_way(place: Path, name: str, way: str) -> None:
    with LMDBDataset(place) as dataset:
        with pytest.raises(AttributeError, match=f"^{name} of a store's dataset cannot be changed: .*{way}"):
            setattr(dataset, name, getattr(dataset, name)[:3] if name in ("samples", "targets") else None)
        dataset.transform = dataset.own = None  # other attributes can be set


class Own(LMDBDataset):
    """A subclass with options of its own."""

    def __init__(self, root: Path, loader: Any = None, extensions: Any = None) -> None:
        super().__init__(root)
        self.options = (loader, extensions)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("loader", "decode= takes the bytes"),
        ("extensions", SUBSET),
        ("is_valid_file", SUBSET),
        ("allow_empty", "classes= of write_store"),
    ],
)
def test_option_of_image_folder_names_the_way(place: Path, name: str, way: str) -> None:
    options: Any = {name: str}
    with pytest.raises(TypeError, match=f"^LMDBDataset has no option {name}: .*{way}"):
        LMDBDataset(place, **options)
    if name in ("loader", "extensions"):
        with Own(root=place, **options) as own:
            assert len(own) == len(NAMES)


class Wrapping(LMDBDataset):
    """A subclass that takes its own option out of all options."""

    def __init__(self, place: Path, **options: Any) -> None:
        self.given = options.pop("loader", None)
        super().__init__(place, **options)


def test_subclass_may_have_an_option_of_image_folder_among_others(place: Path) -> None:
    with Wrapping(place, loader=str, decode=None) as dataset:
        assert dataset.given is str
        assert dataset.decode is None


@pytest.mark.parametrize("name", ["extensions", "make_dataset", "is_valid_file"])
def test_attribute_of_image_folder_names_the_way(place: Path, name: str) -> None:
    with LMDBDataset(place) as dataset:
        with pytest.raises(AttributeError, match=f"^LMDBDataset has no attribute '{name}': "):
            getattr(dataset, name)
        with pytest.raises(AttributeError, match=r"^'LMDBDataset' object has no attribute 'nothing'$"):
            dataset.nothing  # type: ignore[attr-defined] # noqa: B018


def test_targets_have_what_scripts_use_of_a_list(place: Path, tmp_path: Path) -> None:
    store_samples([(b"", 3)] * 3, tmp_path / "zebras.lmdb")
    with LMDBDataset(place) as dataset, LMDBDataset(tmp_path / "zebras.lmdb") as zebras:
        targets = dataset.targets
        assert [targets.count(label) for label in range(4)] == [LABELS.count(label) for label in range(4)]
        assert json.loads(json.dumps(targets.tolist())) == LABELS
        assert dataset.find_classes(dataset.root) == (dataset.classes, dataset.class_to_idx)
        for one, other in ((targets, zebras.targets), (targets, targets), (targets, LABELS), (LABELS, targets)):
            with pytest.raises(TypeError, match=r"which \+ would add up: np\.concatenate\(\[a, b\]\) joins them"):
                one + other
        assert np.concatenate([targets, zebras.targets]).tolist() == [*LABELS, 3, 3, 3]
        for plain in (targets == 3, targets + 1, 1 + targets, -targets, np.arange(4)[targets]):
            assert type(plain) is np.ndarray
        assert ((targets == 3) + (targets == 0)).sum() == LABELS.count(3) + LABELS.count(0)
        assert torch.tensor(targets).tolist() == pickle.loads(pickle.dumps(targets)).tolist() == LABELS  # noqa: S301
