"""write_store makes a store of whatever yields samples: lists, generators, datasets, DataLoaders, stores."""

import collections
import dataclasses
import gc
import io
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
    random_split,
)
from typing_extensions import override

from dbloader import LMDBDataset, PrefetchLoader, Record, convert, create_loader, open_store, write_store
from dbloader.errors import (
    DamagedImageError,
    FieldError,
    OptionError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
)


class Items(Dataset[Any]):
    """A map-style dataset of anything, without an end that iteration could find."""

    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items = items
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    @override
    def __getitem__(self, index: int) -> Any:
        return self.items[index % len(self.items)]


class Stream(IterableDataset[Any]):
    """An iterable dataset that its workers share."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    @override
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        yield from self.items[worker.id :: worker.num_workers] if worker else self.items


class Failing(Items):
    """A dataset of which one item cannot be made."""

    @override
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise RuntimeError("no item 5")
        return super().__getitem__(index)


class Sample(NamedTuple):
    image: Any
    label: int
    caption: str = "a caption"


@dataclasses.dataclass
class Annotated:
    image: Any
    label: int
    boxes: list[list[float]] = dataclasses.field(default_factory=list)


def written(samples: Any, folder: Path, **options: Any) -> list[Record]:
    """The records that write_store makes."""
    place = folder / "s.lmdb"
    place.unlink(missing_ok=True)
    write_store(samples, place, **options)
    with open_store(place) as store:
        return list(store)


def image_of(record: Record) -> Image.Image:
    assert isinstance(record.image, bytes)
    image = Image.open(io.BytesIO(record.image))
    image.load()
    return image


def noise(mode: str, seed: int = 0) -> Image.Image:
    random = np.random.default_rng(seed)
    if mode == "I;16":
        return Image.fromarray(random.integers(0, 2**16, (9, 7), np.uint16))
    if mode in ("I", "F"):
        return Image.fromarray((random.random((9, 7)) * 2**20).astype(np.int32 if mode == "I" else np.float32))
    rgba = Image.fromarray(random.integers(0, 256, (9, 7, 4), np.uint8))
    return rgba if mode == "RGBA" else rgba.convert("RGB").convert(mode)


def encoded(image: Image.Image, image_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, image_format)
    return file.getvalue()


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, of the same types, dtypes and shapes, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return bool(one.dtype == other.dtype and one.equal(other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


# What a sample may be

IMAGE = encoded(noise("RGB"))


@pytest.mark.parametrize(
    "sample",
    [
        (IMAGE, 3, "words"),
        [IMAGE, 3, "words"],
        {"caption": "words", "image": IMAGE, "label": 3},
        collections.OrderedDict(image=IMAGE, label=3, caption="words"),
        Sample(IMAGE, 3, "words"),
        Record(label=3, image=IMAGE, width=7, height=9, format="PNG", fields={"caption": "words"}),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_a_sample_is_a_tuple_list_dict_named_tuple_or_record(tmp_path: Path, sample: Any) -> None:
    (record,) = written([sample], tmp_path, fields=("image", "label", "caption"))
    assert record == Record(label=3, image=IMAGE, width=7, height=9, format="PNG", fields={"caption": "words"}, index=0)


def test_a_named_tuple_and_a_dataclass_have_their_own_names_for_their_items(tmp_path: Path) -> None:
    one, other = written([Sample(IMAGE, 1), Annotated(IMAGE, 2, [[1.0, 2.0]])], tmp_path)
    assert (one.label, one.fields) == (1, {"caption": "a caption"})
    assert (other.label, other.fields) == (2, {"boxes": [[1.0, 2.0]]})
    assert one.image == other.image == IMAGE


@pytest.mark.parametrize("image", [IMAGE, bytearray(IMAGE), memoryview(IMAGE), noise("RGB")])
def test_a_sample_may_be_an_image_alone(tmp_path: Path, image: Any) -> None:
    (record,) = written([image], tmp_path)
    assert (record.label, record.name) == (None, None)
    assert image_of(record).tobytes() == noise("RGB").tobytes()
    assert (record.format, record.width, record.height) == ("PNG", 7, 9)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.float32).reshape(1, 2, 3), torch.arange(6).reshape(2, 3)])
def test_a_sample_may_be_an_array_or_tensor_alone(tmp_path: Path, array: Any) -> None:
    (record,) = written([array], tmp_path)
    assert same(record.image, np.asarray(array))
    assert (record.format, record.width, record.height) == (None, None, None)


def test_a_tuple_may_lack_the_last_items(tmp_path: Path) -> None:
    records = written([(IMAGE,), (IMAGE, 1), ()], tmp_path)
    assert [record.label for record in records] == [None, 1, None]
    assert [record.image for record in records] == [IMAGE, IMAGE, None]


def test_a_sample_needs_no_image(tmp_path: Path) -> None:
    records = written([{"caption": "words"}, {"label": 1}, {}, {"image": None, "label": None}], tmp_path)
    assert records == [
        Record(fields={"caption": "words"}, index=0),
        Record(label=1, index=1),
        Record(index=2),
        Record(index=3),
    ]


def test_standard_fields_of_a_dict_keep_their_meaning(tmp_path: Path) -> None:
    standard = {"name": "a/b.raw", "width": 5, "height": 6, "format": "RAW", "damaged": "cut", "resized_from": (50, 60)}
    (record,) = written([{**standard, "image": IMAGE}], tmp_path)
    assert {key: getattr(record, key) for key in standard} == standard
    with open_store(tmp_path / "s.lmdb") as store:
        assert store.find("a/b.raw") == 0


def test_bytes_that_are_no_image_known_here_are_kept_for_a_decode_that_knows_them(tmp_path: Path) -> None:
    (record,) = written([{"image": b"\x76\x2f\x31\x01 an OpenEXR file"}], tmp_path)
    assert record.image == b"\x76\x2f\x31\x01 an OpenEXR file"
    assert record.format is None


def test_a_tuple_with_more_items_than_names_is_refused(tmp_path: Path) -> None:
    told = r"^sample 1: it has 3 items, and fields names 2: .*fields=\('image', 'label', 'caption'\)$"
    with pytest.raises(FieldError, match=told):
        written([(IMAGE, 1), (IMAGE, 1, "words")], tmp_path)


# Values

VALUES: dict[str, Any] = {
    "bytes": b"\x00\xff",
    "text": "é€ \x00 ",
    "int": -(2**63) + 1,
    "float": 0.1,
    "nan": np.float64("-inf").item(),
    "true": True,
    "none": None,
    "list": [1, "two", [3.0, None], {"four": b"4"}],
    "dict": {"a": {"b": [True]}, "": {}},
    "empty": [],
}


def test_every_kind_of_value_comes_back_as_it_was(tmp_path: Path) -> None:
    (record,) = written([VALUES], tmp_path)
    assert same(record.fields, VALUES)


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16", ">f4", "<M8[s]", "U3", "S3"],
)
@pytest.mark.parametrize("shape", [(3,), (2, 3, 1), (0, 4), (1,)])
def test_arrays_keep_dtype_and_shape(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    (record,) = written([{"image": array, "x": array, "y": [array, {"z": array}]}], tmp_path)
    assert same(record.image, array)
    assert same(record.fields, {"x": array, "y": [array, {"z": array}]})


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64],
)
def test_tensors_come_back_as_arrays_of_their_dtype_and_shape(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    inputs = [tensor, tensor.T, tensor[::2, 1:], tensor.unsqueeze(0).expand(2, 3, 4)]
    (record,) = written([{"image": tensor, "views": inputs}], tmp_path)
    for array, original in zip([record.image, *record.fields["views"]], [tensor, *inputs], strict=True):
        assert isinstance(array, np.ndarray)
        assert same(torch.as_tensor(array), original.contiguous())


def test_tensors_that_numpy_takes_only_after_some_preparation_are_prepared(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    conjugate = torch.tensor([1 + 2j]).conj()
    (record,) = written([{"parameter": parameter, "conjugate": conjugate, "negative": conjugate.imag}], tmp_path)
    assert record.fields["parameter"].tolist() == [1, 1]
    assert (record.fields["conjugate"].tolist(), record.fields["negative"].tolist()) == ([1 - 2j], [-2])


@pytest.mark.parametrize("number", [np.int64(7), np.array(7), torch.tensor(7)])
def test_a_single_int64_is_an_int(tmp_path: Path, number: Any) -> None:
    (record,) = written([{"label": number, "x": number, "y": [number]}], tmp_path)
    assert same([record.label, record.fields], [7, {"x": 7, "y": [7]}])


@pytest.mark.parametrize("number", [np.float64(0.1), np.array(0.1), torch.tensor(0.1, dtype=torch.float64)])
def test_a_single_float64_is_a_float(tmp_path: Path, number: Any) -> None:
    (record,) = written([{"x": number}], tmp_path)
    assert same(record.fields["x"], 0.1)


@pytest.mark.parametrize("truth", [np.bool_(True), np.array(True), torch.tensor(True)])
def test_a_single_bool_is_a_bool(tmp_path: Path, truth: Any) -> None:
    (record,) = written([{"x": truth}], tmp_path)
    assert record.fields["x"] is True


@pytest.mark.parametrize("text", [np.str_("words"), np.array("words")])
def test_a_single_text_is_a_str(tmp_path: Path, text: Any) -> None:
    (record,) = written([{"x": text, "name": text}], tmp_path)
    assert same([record.name, record.fields["x"]], ["words", "words"])


@pytest.mark.parametrize("number", [np.float32(0.1), np.uint8(3), np.array(0.1, ">f4"), torch.tensor(0.1)])
def test_a_single_number_of_another_dtype_keeps_it(tmp_path: Path, number: Any) -> None:
    """As a Python float it would collate to float64, and the network would want float32."""
    (record,) = written([{"x": number}], tmp_path)
    assert same(record.fields["x"], np.asarray(number))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_tensor_that_numpy_has_no_dtype_for_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    told = rf"^sample 0: field 'x\[1\]\.y' is a tensor of {dtype} \(torch\.strided, on cpu\).*by \.float\(\)$"
    with pytest.raises(FieldError, match=told):
        written([{"x": [0, {"y": torch.zeros(2, dtype=dtype)}]}], tmp_path)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.ones(2, 2).to_sparse(), r"torch\.sparse_coo, on cpu.*to_dense"),
        (torch.ones(2, device="meta"), r"torch\.strided, on meta"),
    ],
)
def test_a_tensor_without_plain_values_is_refused(tmp_path: Path, tensor: torch.Tensor, what: str) -> None:
    with pytest.raises(FieldError, match=rf"^sample 0: field 'image' is a tensor of torch.float32 .{what}"):
        written([tensor], tmp_path)


class Strange:
    """Nothing that a record could hold."""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"x": Strange()}, "field 'x' has the type test_writing.Strange; a record holds"),
        ({"x": {"y": [0, Strange()]}}, r"field 'x\.y\[1\]' has the type test_writing.Strange"),
        ({"x": {1, 2}}, "field 'x' has the type builtins.set"),
        ({"x": np.array([Strange()])}, "field 'x' is an array of Python objects"),
        ({"x": np.array(Strange())}, "field 'x' is an array of Python objects"),
        ({"x": 2**63}, "field 'x' must .*, got 9223372036854775808"),
        ({"x": {1: 2}}, "field 'x' has a key that is no"),
        ({1: "x"}, "a field's name must be a str, got 1"),
        ({"index": 3}, "'index' is a field of every record's own; give yours another name"),
        ({"a.b": 3}, "a field's name may not .*'a.b'$"),
        ({"image": "cat.jpg"}, "field 'image' must be the bytes of an image file or an array, got 'cat.jpg'"),
        ({"image": Strange()}, "field 'image' must be the bytes of an image file or an array, got <"),
        ({"name": 5}, "field 'name' must be a str, got 5"),
        ({"width": -1}, "field 'width' must be from 0"),
    ],
)
def test_what_a_record_cannot_hold_is_told_by_sample_and_field(
    tmp_path: Path, fields: dict[Any, Any], told: str
) -> None:
    with pytest.raises(FieldError, match=rf"^sample 2: {told}"):
        written([{}, {}, fields], tmp_path)
    assert list(tmp_path.iterdir()) == []


# Labels


@pytest.mark.parametrize(
    "label",
    [np.int32(2), np.uint8(2), np.array(2, ">i2"), torch.tensor(2), torch.tensor(2, dtype=torch.uint8), np.uint64(2)],
)
def test_a_label_may_be_a_single_integer_of_any_kind(tmp_path: Path, label: Any) -> None:
    (record,) = written([(IMAGE, label)], tmp_path)
    assert same(record.label, 2)


@pytest.mark.parametrize(
    "label", [0.5, 1.0, True, "cat", [1], np.array([1]), torch.tensor([1]), torch.tensor(1.0), np.float32(1), b"1"]
)
def test_a_label_that_is_no_integer_is_refused_with_the_way_out(tmp_path: Path, label: Any) -> None:
    told = r"^sample 1: field 'label' must be an int, got .*: put it into a field of its own, say 'target'$"
    with pytest.raises(FieldError, match=told):
        written([(IMAGE, 1), (IMAGE, label)], tmp_path)
    (record,) = written([(IMAGE, label)], tmp_path, fields=("image", "target"))
    assert "target" in record.fields


def test_a_label_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"^sample 0: field 'label' must be from -"):
        written([(IMAGE, 2**63)], tmp_path)


@pytest.mark.parametrize("label", [2, -1])
def test_a_label_without_a_class_is_refused_when_it_comes_not_at_the_end(tmp_path: Path, label: int) -> None:
    taken = []

    def samples() -> Iterator[tuple[bytes, int]]:
        for at in range(5):
            taken.append(at)
            yield IMAGE, label if at == 2 else 1

    told = rf"^sample 2: label {label} is not one of the 2 classes \(0 to 1\): .* or classes=\(\) to store labels"
    with pytest.raises(FieldError, match=told):
        written(samples(), tmp_path, classes=("a", "b"))
    assert taken == [0, 1, 2]
    assert [record.label for record in written(samples(), tmp_path)][2] == label


# PIL images


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_pil_images_are_stored_without_loss(tmp_path: Path, mode: str) -> None:
    image = noise(mode)
    (record,) = written([image], tmp_path)
    read = image_of(record)
    assert (read.format, read.mode, read.size) == ("PNG", mode, (7, 9))
    assert read.tobytes() == image.tobytes()
    assert read.getpalette() == image.getpalette()
    assert (record.format, record.width, record.height) == ("PNG", 7, 9)


def test_the_transparent_colour_of_a_palette_is_kept(tmp_path: Path) -> None:
    image = noise("P")
    image.info["transparency"] = 3
    (record,) = written([image], tmp_path)
    assert image_of(record).convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_colour_profile_and_exif_are_kept(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    image = noise("RGB")
    image.info.update(icc_profile=b"a profile", exif=exif.tobytes())
    for image_format in ("PNG", "JPEG", "TIFF"):
        (record,) = written([image], tmp_path, image_format=image_format)
        assert image_of(record).info["icc_profile"] == b"a profile"
        assert image_of(record).getexif()[0x010E] == "a description"


@pytest.mark.parametrize("mode", ["CMYK", "F", "PA", "YCbCr", "LAB"])
def test_a_mode_that_png_has_not_is_refused_and_tiff_takes_it(tmp_path: Path, mode: str) -> None:
    image = noise(mode)
    told = (
        rf"^sample 0: field 'image' is an image of mode {mode}, which cannot be written as PNG \(.*\): "
        r"choose image_format='TIFF', .* or convert it, such as by \.convert\('RGB'\)"
    )
    with pytest.raises(FieldError, match=told):
        written([image], tmp_path)
    (record,) = written([image], tmp_path, image_format="TIFF")
    assert (image_of(record).mode, image_of(record).tobytes()) == (mode, image.tobytes())


@pytest.mark.parametrize("mode", ["RGBA", "P", "I;16", "F", "LA"])
def test_a_mode_that_jpeg_has_not_is_refused(tmp_path: Path, mode: str) -> None:
    with pytest.raises(FieldError, match=f"an image of mode {mode}, which cannot be written as JPEG"):
        written([noise(mode)], tmp_path, image_format="JPEG")


@pytest.mark.parametrize(
    ("image", "image_format", "lost"),
    [
        (noise("RGBA"), "BMP", "transparency"),
        (noise("F"), "WEBP", "depth of more than 8 bits"),
        (noise("I;16"), "WEBP", "depth of more than 8 bits"),
        (noise("RGB").resize((300, 20)), "ICO", "size"),
    ],
)
def test_what_pillow_would_drop_without_a_word_is_refused(
    tmp_path: Path, image: Image.Image, image_format: str, lost: str
) -> None:
    with pytest.raises(FieldError, match=f"cannot be written as {image_format} .that loses its {lost}.: choose"):
        written([image], tmp_path, image_format=image_format)


@pytest.mark.parametrize("value", [-1, 2**16])
def test_values_that_16_bits_do_not_hold_are_refused(tmp_path: Path, value: int) -> None:
    values = np.array([[0, 2**16 - 1, 300]], np.int32)
    (record,) = written([Image.fromarray(values)], tmp_path, image_format="PPM")
    assert np.asarray(image_of(record)).tolist() == values.tolist()
    values[0, 2] = value
    with pytest.raises(FieldError, match=r"cannot be written as PPM .that loses its values outside of 0 to"):
        written([Image.fromarray(values)], tmp_path, image_format="PPM")


@pytest.mark.parametrize("image_format", ["TIFF", "PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_no_format_turns_an_image(tmp_path: Path, image_format: str, orientation: int) -> None:
    image = Image.new("RGB", (9, 8), "red")
    image.paste("blue", (0, 0, 9, 3))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = orientation, "a description"
    image.info["exif"] = exif.tobytes()
    (record,) = written([image], tmp_path, image_format=image_format)
    read = image_of(record)
    assert (read.size, record.width, record.height) == ((9, 8), 9, 8)
    assert np.abs(np.asarray(read).astype(int) - np.asarray(image)).mean() < 60
    assert read.getexif()[0x010E] == "a description"
    assert read.getexif().get(0x0112) == (None if image_format == "TIFF" else orientation)


@pytest.mark.parametrize("image_format", ["JPEG", "jpeg", "WEBP", "TIFF", "BMP", "PPM", "QOI", "gif"])
def test_images_are_encoded_in_the_format_chosen(tmp_path: Path, image_format: str) -> None:
    (record,) = written([noise("L" if image_format == "gif" else "RGB")], tmp_path, image_format=image_format)
    assert image_of(record).format == record.format == image_format.upper()


def test_a_lower_quality_takes_fewer_bytes(tmp_path: Path) -> None:
    sizes = []
    for quality in (1, 50, None, 100):
        (record,) = written([noise("RGB").resize((70, 90))], tmp_path, image_format="JPEG", quality=quality)
        assert isinstance(record.image, bytes)
        sizes.append(len(record.image))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 4


def test_masks_are_stored_without_loss_whatever_the_images_are(tmp_path: Path) -> None:
    mask = noise("L")
    sample = {"image": noise("RGB"), "mask": mask, "masks": [mask, {"fine": noise("I;16")}]}
    (record,) = written([sample], tmp_path, image_format="JPEG", quality=10)
    assert record.format == "JPEG"
    for data in (record.fields["mask"], record.fields["masks"][0]):
        assert Image.open(io.BytesIO(data)).tobytes() == mask.tobytes()
    assert Image.open(io.BytesIO(record.fields["masks"][1]["fine"])).tobytes() == noise("I;16").tobytes()
    with pytest.raises(FieldError, match=r"field 'mask' is an image of mode F, .*: convert it, such as .*asarray"):
        written([{"mask": noise("F")}], tmp_path, image_format="TIFF")


def test_a_pil_image_that_does_not_decode_is_told(tmp_path: Path) -> None:
    data = encoded(noise("RGB").resize((200, 200)), "JPEG")
    with (
        Image.open(io.BytesIO(data[: len(data) // 2])) as image,
        pytest.raises(DamagedImageError, match=r"^sample 1: field 'image' is an image that does not decode: .*trunc"),
    ):
        written([noise("RGB"), image], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_a_file_was_opened_for_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(IMAGE)
    with Image.open(tmp_path / "x.png") as image:
        (record,) = written([image], tmp_path)
    assert image_of(record).tobytes() == noise("RGB").tobytes()


# Options


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_a_quality_out_of_range_is_refused(tmp_path: Path, quality: int) -> None:
    with pytest.raises(OptionError, match=rf"^quality must be from 1 to 100, got {quality}$"):
        written([], tmp_path, quality=quality, image_format="JPEG")


def test_a_quality_that_the_format_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^quality is for the formats .*: give image_format='JPEG' too$"):
        written([], tmp_path, quality=90)


@pytest.mark.parametrize("image_format", ["JPG", "", "PDF", "no format"])
def test_a_format_that_pillow_does_not_write_and_read_is_refused(tmp_path: Path, image_format: str) -> None:
    with pytest.raises(OptionError, match=f"such as PNG or JPEG, got {image_format!r}$"):
        written([], tmp_path, image_format=image_format)


def test_one_str_for_several_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^fields must be several names, such as \('image',\), got the one str"):
        written([], tmp_path, fields="image")
    with pytest.raises(OptionError, match=r"^classes must be several names, such as \('cat',\), got the one str"):
        written([], tmp_path, classes="cat")


def test_classes_that_are_no_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    names: Any = [1, 2]
    with pytest.raises(OptionError, match=r"^classes must be names, such as \('cat', 'dog'\), got \(1, 2\)$"):
        written([], tmp_path, classes=names)


def test_a_place_that_is_no_path_is_refused() -> None:
    place: Any = 5
    with pytest.raises(TypeError, match=r"a place must be the path of an LMDB file or mongodb://.*, got int$"):
        write_store([], place)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_loader_that_create_loader_made_is_refused(tmp_path: Path, workers: Any) -> None:
    """It gives batches that are decoded, cropped and normalized."""
    write_store([(IMAGE, 0)] * 3, tmp_path / "a.lmdb")
    dataset = LMDBDataset(tmp_path / "a.lmdb")
    loader = create_loader(dataset, batch_size=2, device=None, num_workers=0, workers=workers)
    with loader, pytest.raises(OptionError, match="that create_loader made gives whole batches, not samples: give its"):
        write_store(loader, tmp_path / "b.lmdb")


def test_a_name_for_two_items_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^fields must be different names, got 'image', 'image'$"):
        written([], tmp_path, fields=("image", "image"))


@pytest.mark.parametrize("fields", [[None], 3])
def test_fields_that_are_no_names_are_refused(tmp_path: Path, fields: Any) -> None:
    with pytest.raises(OptionError, match=r"^fields must be names, such as \('image', 'label'\), got "):
        write_store([], tmp_path / "store.lmdb", fields=fields)


def test_a_format_that_is_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^image_format must be Pillow's name of a format, such as 'PNG', got 3"):
        write_store([], tmp_path / "store.lmdb", image_format=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("samples", "kind"),
    [({"image": [IMAGE]}, "dict"), ("folder/", "str"), (IMAGE, "bytes"), (5, "int"), (Record(), "Record"),
     (noise("L"), "Image"), (None, "NoneType")],
)  # fmt: skip
def test_what_is_not_several_samples_is_refused(tmp_path: Path, samples: Any, kind: str) -> None:
    told = rf"^samples must be an iterable .* got {kind}: put a single sample into a list.*convert\(\)$"
    with pytest.raises(OptionError, match=told):
        written(samples, tmp_path)
    assert list(tmp_path.iterdir()) == []


# Sources


@pytest.mark.parametrize(
    "source",
    [
        lambda items: items,
        lambda items: tuple(items),
        lambda items: iter(items),
        lambda items: (item for item in items),
        lambda items: dict(enumerate(items)).values(),
        Items,
        Stream,
        lambda items: Subset(Items(items), range(len(items))),
        lambda items: ConcatDataset([Items(items[:3]), Items(items[3:])]),
        lambda items: DataLoader(Items(items), batch_size=4),
        lambda items: DataLoader(Items(items), batch_size=None),
        lambda items: DataLoader(Items(items), batch_size=1),
        lambda items: DataLoader(Stream(items), batch_size=4),
        lambda items: DataLoader(Stream(items), batch_size=None),
        lambda items: PrefetchLoader(DataLoader(Items(items), batch_size=4)),
        lambda items: PrefetchLoader(PrefetchLoader(items)),
    ],
)
def test_samples_come_from_any_iterable_dataset_or_loader(tmp_path: Path, source: Callable[[Any], Any]) -> None:
    items = [(np.full((2, 3), index, np.float32), index) for index in range(10)]
    records = written(source(items), tmp_path)
    assert [record.label for record in records] == list(range(10))
    assert [record.index for record in records] == list(range(10))
    for record, (array, _) in zip(records, items, strict=True):
        assert same(record.image, array)


def test_a_tensor_or_array_of_images_is_an_iterable_of_them(tmp_path: Path) -> None:
    images = torch.rand(3, 2, 4)
    for source in (images, images.numpy()):
        for record, image in zip(written(source, tmp_path), images, strict=True):
            assert same(record.image, image.numpy())


def test_a_tensor_dataset_is_taken_by_the_names_of_its_tensors(tmp_path: Path) -> None:
    x, y, z = torch.rand(4, 3), torch.arange(4), torch.rand(4)
    records = written(TensorDataset(x, y, z), tmp_path, fields=("image", "label", "weight"))
    assert [record.label for record in records] == [0, 1, 2, 3]
    assert all(same(record.fields["weight"], np.asarray(z[at])) for at, record in enumerate(records))


def test_a_store_is_copied_with_its_classes(tmp_path: Path) -> None:
    samples = [{"image": noise("L", at), "label": at % 2, "name": f"{at}.png", "x": [at]} for at in range(5)]
    first = write_store(samples, tmp_path / "first.lmdb", classes=("a", "b"))
    with open_store(tmp_path / "first.lmdb") as store:
        second = write_store(store, tmp_path / "second.lmdb")
    assert (first.digest, first.classes, first.fields) == (second.digest, second.classes, second.fields)


def test_no_samples_make_an_empty_store(tmp_path: Path) -> None:
    manifest = write_store([], tmp_path / "s.lmdb", classes=("a",))
    assert (manifest.length, manifest.classes, manifest.labelled, manifest.named) == (0, ("a",), 0, 0)
    with open_store(tmp_path / "s.lmdb") as store:
        assert (len(store), list(store)) == (0, [])
        assert store.verify() == manifest.digest


def test_a_store_is_not_overwritten_with_no_samples(tmp_path: Path) -> None:
    place, used_up = tmp_path / "s.lmdb", iter([{"x": 1}])
    manifest = write_store([{"x": at} for at in range(5)], place)
    next(used_up)
    with pytest.raises(OptionError, match=r"no samples to overwrite .*s\.lmdb with \(an iterator may have been used"):
        write_store(used_up, place, overwrite=True)
    with open_store(place) as store:
        assert store.verify() == manifest.digest
    assert [path.name for path in tmp_path.iterdir()] == ["s.lmdb"]


def test_the_manifest_is_that_of_the_store(tmp_path: Path) -> None:
    samples = [{"image": noise("L"), "label": 1, "name": "a", "x": 1}, {"image": noise("RGB"), "label": 1}]
    manifest = write_store(samples, tmp_path / "s.lmdb", classes=["a", "b"])
    with open_store(tmp_path / "s.lmdb") as store:
        assert store.manifest == manifest
    assert (manifest.length, manifest.labelled, manifest.named, manifest.label_counts) == (2, 2, 1, {1: 2})
    assert (manifest.formats, manifest.fields, manifest.source) == ({"PNG": 2}, {"x": 1}, {"kind": "samples"})


# DataLoaders


def test_a_shuffling_loaders_order_is_kept(tmp_path: Path) -> None:
    items = [(torch.tensor([float(index)]), index) for index in range(23)]

    def loader() -> DataLoader[Any]:
        return DataLoader(Items(items), 5, shuffle=True, generator=torch.Generator().manual_seed(3))

    expected = [label for _, labels in loader() for label in labels.tolist()]
    assert expected != sorted(expected)
    assert [record.label for record in written(loader(), tmp_path)] == expected


def test_the_last_short_batch_is_kept_unless_the_loader_drops_it(tmp_path: Path) -> None:
    items = [(IMAGE, index) for index in range(10)]
    for batch_size, drop_last, length in ((4, False, 10), (4, True, 8), (20, False, 10), (20, True, 0), (3, False, 10)):
        records = written(DataLoader(Items(items), batch_size, drop_last=drop_last), tmp_path)
        assert [record.label for record in records] == list(range(length))


STRUCTURES: dict[str, Any] = {
    "tensors": lambda at: (torch.full((2, 2), float(at)), torch.tensor(at)),
    "images of the size of the batch": lambda at: (np.full((5, 5), at), at),
    "an image alone": lambda at: torch.full((5,), at),
    "numbers": lambda at: {"int": at, "float": at / 3, "bool": at > 2, "float32": torch.tensor(at / 3)},
    "strings": lambda at: {"caption": f"number {at}", "tags": [f"a{at}", f"b{at}"], "pair": ["x" * at, "y"]},
    "strings as many as the batch": lambda at: {"tags": [f"{at}.{tag}" for tag in range(5)]},
    "nested": lambda at: {"a": {"b": [torch.tensor([at]), {"c": f"{at}"}]}, "d": [[at, at + 1], [at]]},
    "bytes": lambda at: {"image": b"%d" % at, "parts": [b"x", b"%d" % at]},
    "a list of tensors": lambda at: {"boxes": [torch.full((3,), at), torch.full((2, 2), at)]},
    "a named tuple": lambda at: Sample(torch.full((2,), at), at, f"caption {at}"),
    "nothing in it": lambda at: {"empty": [], "none": {}, "label": at},
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_a_loader_batches_is_taken_apart_again(tmp_path: Path, structure: str) -> None:
    """Batches of 5, with structures that look the other way round: lists of 5, images of 5 rows, fields of 5."""
    items = [STRUCTURES[structure](at) for at in range(12)]
    records = written(DataLoader(Items(items), 5), tmp_path)
    assert len(records) == 12
    for one, other in zip(records, written(items, tmp_path), strict=True):
        assert same(dataclasses.asdict(one), dataclasses.asdict(other))


@pytest.mark.parametrize("structure", [name for name in STRUCTURES if name != "a named tuple"])
def test_training_on_a_dump_gives_the_batches_of_the_loader_that_was_dumped(tmp_path: Path, structure: str) -> None:
    items = [STRUCTURES[structure](at) for at in range(12)]
    write_store(DataLoader(Items(items), 5), tmp_path / "s.lmdb")
    fields: Any = None if isinstance(items[0], tuple) else ("image",)
    if isinstance(items[0], dict):
        fields = tuple(items[0])
    with LMDBDataset(tmp_path / "s.lmdb", fields=fields, decode=None) as dataset:
        batches = list(DataLoader(dataset, 5))
    expected = list(DataLoader(Items(items), 5))
    if not isinstance(items[0], (tuple, dict)):
        expected = [{"image": batch} for batch in expected]
    assert same(batches, expected)


def test_an_augmented_set_is_dumped_as_the_tensors_it_was_trained_on(tmp_path: Path) -> None:
    """The recipe: dump a loader of transformed images once, train on what it gave ever after."""
    torch.manual_seed(0)
    images = [(torch.rand(3, 8, 8) - 0.5, at % 3) for at in range(10)]
    loader = DataLoader(Items(images, classes=["a", "b", "c"]), 4)
    write_store(loader, tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        for batch, (expected, labels) in zip(DataLoader(dataset, 4), loader, strict=True):
            assert (batch[0].dtype, batch[1].dtype) == (torch.float32, torch.int64)
            assert batch[0].equal(expected)
            assert batch[1].equal(labels)
        assert same(default_collate(dataset.__getitems__([0, 5])), default_collate([images[0], images[5]]))
        assert dataset.classes == ["a", "b", "c"]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_make_and_encode_the_samples_in_order(tmp_path: Path, context: str) -> None:
    images = [(noise("RGB", at), at) for at in range(9)]
    # PIL images do not collate: the loader alone would fail.
    loader = DataLoader(Items(images), 2, num_workers=2, multiprocessing_context=context)
    records = written(loader, tmp_path)
    assert [record.label for record in records] == list(range(9))
    assert all(image_of(record).tobytes() == noise("RGB", at).tobytes() for at, record in enumerate(records))


def test_an_iterable_datasets_workers_share_the_samples(tmp_path: Path) -> None:
    items = [(torch.ones(2), at) for at in range(9)]
    for batch_size in (2, None):
        records = written(DataLoader(Stream(items), batch_size, num_workers=2), tmp_path)
        assert sorted(record.label or 0 for record in records) == list(range(9))


class Witness(Dataset[Any]):
    """Tells which process made a sample."""

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> Any:
        return {"pid": os.getpid(), "tensors": [torch.ones(2) for _ in range(700)]}


def test_a_batch_of_many_tensors_keeps_no_file_open_for_each(tmp_path: Path) -> None:
    """As torch does to share them, until the process has too many open: here 2,800 of 1,024."""
    program = f"""if True:
        import resource, sys, warnings
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from torch.utils.data import DataLoader
        from dbloader import write_store
        from tests.conversion.test_write_store import Witness
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        write_store(DataLoader(Witness(), 4, num_workers=1), sys.argv[1])
    """
    subprocess.run([sys.executable, "-c", program, tmp_path / "s.lmdb"], check=True, timeout=100)
    with open_store(tmp_path / "s.lmdb") as store:
        assert [len(record.fields["tensors"]) for record in store] == [700] * 4
        assert {record.fields["pid"] for record in store}.isdisjoint({os.getpid()})


def test_persistent_workers_of_the_loader_are_left_alone(tmp_path: Path) -> None:
    items = [(torch.ones(2), at) for at in range(4)]
    loader = DataLoader(Items(items), 2, num_workers=1, persistent_workers=True)
    before = list(loader)
    workers = loader._iterator._workers  # type: ignore[union-attr]
    assert [record.label for record in written(loader, tmp_path)] == [0, 1, 2, 3]
    assert loader._iterator._workers is workers  # type: ignore[union-attr]
    assert workers[0].is_alive()
    assert same(list(loader), before)
    loader._iterator._shutdown_workers()  # type: ignore[union-attr]


def refuse_to_collate(batch: list[Any]) -> Any:
    raise AssertionError(f"called with {len(batch)} samples")


def columns(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


@pytest.mark.parametrize("collate", [list, tuple, columns, refuse_to_collate, default_collate])
def test_the_samples_are_taken_before_they_are_collated(tmp_path: Path, collate: Any) -> None:
    """So that samples of different sizes fit, and a batch is never mistaken for a sample or the reverse."""
    boxes = [(torch.rand(at, 4), at) for at in range(5)]  # images and labels of pairs: 2 x 2 looks the same both ways
    loader = DataLoader(Items(boxes), 2, collate_fn=collate)
    for record, (tensor, label) in zip(written(loader, tmp_path), boxes, strict=True):
        assert same(record.image, tensor.numpy())
        assert record.label == label


def test_the_same_collate_fn_gives_the_same_batches_of_the_dump(tmp_path: Path) -> None:
    def pad(batch: list[Any]) -> dict[str, torch.Tensor]:
        images = [torch.as_tensor(image) for image, _ in batch]
        return {"x": torch.nn.utils.rnn.pad_sequence(images), "y": torch.tensor([label for _, label in batch])}

    loader = DataLoader(Items([(torch.rand(at + 1, 2), at) for at in range(7)]), 3, collate_fn=pad)
    write_store(loader, tmp_path / "s.lmdb")
    with LMDBDataset(tmp_path / "s.lmdb") as dataset:
        assert same(list(DataLoader(dataset, 3, collate_fn=pad)), list(loader))


def double(sample: Any) -> Any:
    return sample[0] * 2, sample[1]


def test_without_batches_the_collate_fn_makes_the_samples(tmp_path: Path) -> None:
    loader = DataLoader(Items([(torch.ones(2), 5)]), None, collate_fn=double)
    (record,) = written(loader, tmp_path)
    assert same(record.image, np.full(2, 2, np.float32))


class Repeating(DataLoader[Any]):
    """A loader that makes its batches itself, as some do to repeat, echo or mix them."""

    @override
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {"batch": batch}


def test_a_loader_whose_batches_cannot_be_taken_apart_is_refused(tmp_path: Path) -> None:
    loader = Repeating(Items([(torch.ones(2), 5)]), 4)
    with pytest.raises(OptionError, match=r"^this Repeating gives batches that its collate_fn has not made"):
        written(loader, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_loader_over_an_lmdb_dataset_dumps_to_an_equal_store(tmp_path: Path) -> None:
    for at in range(6):
        folder = tmp_path / "folder" / "ab"[at % 2]
        folder.mkdir(parents=True, exist_ok=True)
        noise("RGB", at).save(folder / f"{at}.{'jpg' if at < 3 else 'png'}")
    convert(tmp_path / "folder", tmp_path / "first.lmdb")
    with LMDBDataset(tmp_path / "first.lmdb", decode=None, fields=("image", "label", "name")) as dataset:
        for workers in (0, 1):
            manifest = write_store(DataLoader(dataset, 4, num_workers=workers), tmp_path / "s.lmdb", overwrite=True)
            assert manifest.digest == dataset.manifest.digest
            assert manifest.classes == dataset.manifest.classes
    with LMDBDataset(tmp_path / "first.lmdb") as first:
        write_store(first, tmp_path / "decoded.lmdb")
        with LMDBDataset(tmp_path / "decoded.lmdb") as second:
            assert second.classes == first.classes
            for at in range(6):
                assert (second[at][0].tobytes(), second[at][1]) == (first[at][0].tobytes(), first[at][1])


# Classes


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["a", "b"], ("a", "b")),
        (("a", "b"), ("a", "b")),
        ([], ()),
        (None, ()),
        ("ab", ()),
        ([("tench", "Tinca tinca"), ("goldfish",)], ()),
        ({"a": 0}, ()),
        (5, ()),
    ],
)
def test_class_names_are_those_of_the_dataset_if_it_has_such(tmp_path: Path, classes: Any, expected: Any) -> None:
    dataset = Items([(IMAGE, 0)], classes=classes)
    assert write_store(dataset, tmp_path / "s.lmdb").classes == expected


def test_class_names_are_found_through_loaders_subsets_and_splits(tmp_path: Path) -> None:
    names = ("a", "b")
    dataset = Items([(IMAGE, at % 2) for at in range(4)], classes=list(names))
    other = Items([(IMAGE, 0)], classes=["c"])
    for number, (source, expected) in enumerate(
        [
            (DataLoader(dataset), names),
            (Subset(dataset, [1]), names),
            (random_split(dataset, [0.5, 0.5])[0], names),
            (DataLoader(Subset(Subset(dataset, [0, 1]), [1]), 2), names),
            (PrefetchLoader(DataLoader(dataset)), names),
            (ConcatDataset([dataset, Subset(dataset, [0])]), names),
            ([(IMAGE, 0)], ()),
        ]
    ):
        assert write_store(source, tmp_path / f"{number}.lmdb").classes == expected
    told = "label 0 is 'a' in Items, which has 2, and 'c' in Items, which has 1; give classes="
    with pytest.raises(OptionError, match=told):
        write_store(ConcatDataset([dataset, other]), tmp_path / "mixed.lmdb")


def test_class_names_that_are_given_come_before_those_of_the_dataset(tmp_path: Path) -> None:
    dataset = Items([(IMAGE, 0)], classes=["a"])
    assert write_store(dataset, tmp_path / "1.lmdb", classes=["x", "y"]).classes == ("x", "y")
    assert write_store(dataset, tmp_path / "2.lmdb", classes=()).classes == ()


# When something is wrong


def test_an_error_of_the_source_leaves_nothing_at_the_place(tmp_path: Path) -> None:
    def samples() -> Iterator[Any]:
        yield IMAGE, 1
        raise LookupError("the source broke")

    with pytest.raises(LookupError, match=r"^the source broke$"):
        write_store(samples(), tmp_path / "s.lmdb")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        LMDBDataset(tmp_path / "s.lmdb")


def test_an_interruption_leaves_nothing_at_the_place(tmp_path: Path) -> None:
    def samples() -> Iterator[Any]:
        yield IMAGE, 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        write_store(samples(), tmp_path / "s.lmdb")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    """To which nothing is to be left."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_error_in_a_loader_ends_its_workers(tmp_path: Path, workers: int, batch_size: int | None) -> None:
    loader = DataLoader(Failing([(IMAGE, at) for at in range(8)]), batch_size, num_workers=workers)
    with pytest.raises(RuntimeError, match="no item 5"):
        write_store(loader, tmp_path / "s.lmdb")
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_no_garbage_collection")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_stored_is_told_and_ends_the_workers_of_its_loader(
    tmp_path: Path, workers: int
) -> None:
    items = [(IMAGE, at if at != 5 else "five") for at in range(12)]
    with pytest.raises(FieldError, match=r"^sample 5: field 'label' must be an int, got 'five': [^\n]*$"):
        write_store(DataLoader(Items(items), 3, num_workers=workers), tmp_path / "s.lmdb")
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_overwriting_leaves_the_old_store(tmp_path: Path) -> None:
    place = tmp_path / "s.lmdb"
    old = write_store([(IMAGE, 1)], place)
    with pytest.raises(FieldError, match=r"^sample 1: "):
        write_store([(IMAGE, 2), (IMAGE, "two")], place, overwrite=True)
    with open_store(place) as store:
        assert (store.manifest, store[0].label) == (old, 1)
    assert list(tmp_path.iterdir()) == [place]


def test_a_store_is_replaced_only_on_request(tmp_path: Path) -> None:
    place = tmp_path / "s.lmdb"
    write_store([(IMAGE, 1)], place)
    taken = iter([(IMAGE, 2)])
    with pytest.raises(StoreExistsError, match=re.escape(f"{place} exists already; overwrite")):
        write_store(taken, place)
    write_store(taken, place, overwrite=True)  # from which nothing had been taken
    with open_store(place) as store:
        assert store[0].label == 2


def test_a_store_may_be_replaced_by_what_is_read_from_it(tmp_path: Path) -> None:
    place = tmp_path / "s.lmdb"
    write_store([(IMAGE, at) for at in range(5)], place)
    with LMDBDataset(place, decode=None, target_transform=lambda label: label + 10) as dataset:
        write_store(dataset, place, overwrite=True)
        assert dataset[0][1] == 10  # the old one, as long as it is open
    with open_store(place) as store:
        assert [record.label for record in store] == [10, 11, 12, 13, 14]


def test_a_place_that_cannot_be_written_is_told_before_a_sample_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreAccessError, match=r"the folder .*none does not exist"):
        write_store((pytest.fail(f"sample {at} was made") for at in range(1)), tmp_path / "none/s.lmdb")


def test_writing_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, numpy; from dbloader import write_store; "
        "write_store([(numpy.ones(3), 1)], sys.argv[1]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "s.lmdb"], check=True, timeout=100)
    assert (tmp_path / "s.lmdb").exists()


def test_values_of_any_kind_survive_the_way_through_a_pickle(tmp_path: Path) -> None:
    """What comes from a worker went through one."""
    (record,) = written([VALUES], tmp_path)
    assert same(pickle.loads(pickle.dumps(record)).fields, VALUES)  # noqa: S301 - our own
    with warnings.catch_warnings(record=True) as seen:
        written(DataLoader(Items([VALUES]), 1, num_workers=1), tmp_path)
    assert not seen
