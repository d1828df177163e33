"""Converting samples to records: kinds of samples, their values, labels and images."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader.errors import FieldError, OptionError
from dbloader.ext.collecting.write_store import write_store
from dbloader.records.record import Record
from tests.ext.collecting.written import written
from tests.support.samples import IMAGE, Annotated, Sample, image_of, noise, same


@pytest.mark.parametrize(
    "sample",
    [
        (IMAGE, 3, "words"),
        [IMAGE, 3, "words"],
        {"caption": "words", "image": IMAGE, "label": 3},
        collections.OrderedDict(image=IMAGE, label=3, caption="words"),
        Sample(IMAGE, 3, "words"),
        Annotated(IMAGE, 3, "words"),
        Record(label=3, image=IMAGE, width=7, height=9, format="PNG", fields={"caption": "words"}),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_sample_may_be_of_any_usual_type(tmp_path: Path, sample: Any) -> None:
    (record,) = written([sample], tmp_path, fields=("image", "label", "caption"))
    assert record == Record(label=3, image=IMAGE, width=7, height=9, format="PNG", fields={"caption": "words"}, index=0)


@pytest.mark.parametrize("image", [bytearray(IMAGE), memoryview(IMAGE), noise("RGB")])
def test_sample_may_be_an_image_alone(tmp_path: Path, image: Any) -> None:
    (record,) = written([image], tmp_path)
    assert (record.label, record.name) == (None, None)
    assert image_of(record).tobytes() == noise("RGB").tobytes()
    assert (record.format, record.width, record.height) == ("PNG", 7, 9)


def test_sample_may_lack_any_item_even_the_image(tmp_path: Path) -> None:
    samples = [(IMAGE,), (), {"caption": "words"}, {"image": None, "label": None}]
    first, *others = written(samples, tmp_path)
    assert (first.image, first.label) == (IMAGE, None)
    assert others == [Record(index=1), Record(fields={"caption": "words"}, index=2), Record(index=3)]


def test_bytes_of_unknown_format_are_kept(tmp_path: Path) -> None:
    (record,) = written([{"image": b"\x76\x2f\x31\x01 an OpenEXR file"}], tmp_path)
    assert (record.image, record.format) == (b"\x76\x2f\x31\x01 an OpenEXR file", None)


def test_tuple_with_more_items_than_names_is_refused(tmp_path: Path) -> None:
    message = r"^sample 1: it has 3 items, but fields has 2 names: .*fields=\('image', 'label', 'caption'\)$"
    with pytest.raises(FieldError, match=message):
        written([(IMAGE, 1), (IMAGE, 1, "words")], tmp_path)


# Values


def test_tensors_become_arrays_of_their_dtype_and_shape(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.float32, torch.uint8, torch.int64, torch.bool, torch.complex64):
        tensor = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
        wide = tensor.unsqueeze(0).expand(2, 3, 4)
        inputs = [tensor, tensor.T, tensor[::2, 1:], wide, torch.nn.Parameter(tensor, requires_grad=False)]
        (record,) = written([{"image": tensor, "views": inputs}], tmp_path)
        for array, original in zip([record.image, *record.fields["views"]], [tensor, *inputs], strict=True):
            assert isinstance(array, np.ndarray)
            assert same(torch.as_tensor(array), original.detach().contiguous())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((number, 7) for number in (np.int64(7), np.array(7), torch.tensor(7))),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (np.bool_(True), True),
        (np.str_("words"), "words"),
        # A Python float would collate to float64, and networks take float32.
        *((x, np.asarray(x)) for x in (np.float32(0.1), np.uint8(3), np.array(0.1, ">f4"), torch.tensor(0.1))),
    ],
)
def test_single_value_becomes_a_python_value_of_the_same_dtype(tmp_path: Path, value: Any, expected: Any) -> None:
    (record,) = written([{"x": value, "y": [value]}], tmp_path, require_images=False)
    assert same(record.fields, {"x": expected, "y": [expected]})


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.zeros(2, dtype=torch.bfloat16), r"torch.bfloat16 \(torch\.strided, on cpu\)"),
        (torch.ones(2, 2).to_sparse(), r"torch.float32 \(torch\.sparse_coo, on cpu\)"),
    ],
)
def test_tensor_without_a_numpy_dtype_is_refused(tmp_path: Path, tensor: torch.Tensor, what: str) -> None:
    message = rf"^sample 0: field 'x\[1\]\.y' is a tensor of {what}.*by \.float\(\)$"
    with pytest.raises(FieldError, match=message):
        written([{"x": [0, {"y": tensor}]}], tmp_path)


class Strange:
    """A type that no record can hold."""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": {"y": [0, Strange()]}}, r"field 'x\.y\[1\]' has the type tests\.\S+\.Strange; a record holds"),
        ({1: "x"}, "a field's name must be a str, got 1"),
        ({"image": "cat.jpg"}, "field 'image' must be the bytes of an image file or an array, got 'cat.jpg'"),
        ({"label": 2**63}, "field 'label' must be from -"),
    ],
)
def test_unstorable_value_is_refused_with_its_field(tmp_path: Path, fields: dict[Any, Any], message: str) -> None:
    with pytest.raises(FieldError, match=rf"^sample 2: {message}"):
        written([{}, {}, fields], tmp_path)
    assert list(tmp_path.iterdir()) == []


# Labels


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (True, "field 'label' must be an int, or the name of a class.* got True: give .* field"),
        ("cat", "label 'cat' is none of .* field"),
        (
            np.array([1]),
            r"field 'label' must have one number, .* got 1 numbers array\(\[1\]\) and 0 names: "
            r"pass 1 names as classes=.* field",
        ),
        (1.0, "field 'label' is of the kind float, but of the kind label in earlier"),
        (torch.tensor(1.0), "field 'label' is of the kind float, but of the kind label in earlier"),
    ],
)
def test_label_of_another_type_is_refused_with_a_remedy(tmp_path: Path, label: Any, message: str) -> None:
    message = f"^sample 1: {message}"
    with pytest.raises(FieldError, match=message):
        written([(IMAGE, 1), (IMAGE, label)], tmp_path)
    (record,) = written([(IMAGE, label)], tmp_path, fields=("image", "target"))
    assert "target" in record.fields


# PIL images


def test_pil_images_are_stored_without_loss(tmp_path: Path) -> None:
    images = [noise(mode) for mode in ("1", "L", "LA", "P", "P", "RGB", "RGBA", "I;16")]
    images[4].info["transparency"] = 3
    for record, image in zip(written(images, tmp_path), images, strict=True):
        read = image_of(record)
        assert (read.format, read.mode, read.size) == ("PNG", image.mode, (7, 9))
        assert read.tobytes() == image.tobytes()
        assert read.getpalette() == image.getpalette()
        assert read.info.get("transparency") == image.info.get("transparency")
        assert (record.format, record.width, record.height) == ("PNG", 7, 9)


@pytest.mark.parametrize("image_format", ["TIFF", "png", "JPEG", "WEBP"])
def test_every_format_keeps_profile_and_exif_and_does_not_turn_pixels(tmp_path: Path, image_format: str) -> None:
    image = Image.new("RGB", (9, 8), "red")
    image.paste("blue", (0, 0, 9, 3))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    image.info.update(icc_profile=b"a profile", exif=exif.tobytes())
    (record,) = written([image], tmp_path, image_format=image_format)
    read = image_of(record)
    assert read.format == record.format == image_format.upper()
    assert (read.size, record.width, record.height) == ((9, 8), 9, 8)
    assert np.abs(np.asarray(read).astype(int) - np.asarray(image)).mean() < 60
    assert read.info["icc_profile"] == b"a profile"
    assert read.getexif()[0x010E] == "a description"
    assert read.getexif().get(0x0112) == (None if image_format == "TIFF" else 6)


@pytest.mark.parametrize("mode", ["CMYK", "F"])
def test_mode_that_png_lacks_is_refused_as_png_and_stored_as_tiff(tmp_path: Path, mode: str) -> None:
    image = noise(mode)
    message = (
        rf"^sample 0: field 'image' is an image of mode {mode}, which cannot be written as PNG \(.*\): "
        r"choose image_format='TIFF', .* or convert the image, for example by \.convert\('RGB'\)"
    )
    with pytest.raises(FieldError, match=message):
        written([image], tmp_path)
    (record,) = written([image], tmp_path, image_format="TIFF")
    assert (image_of(record).mode, image_of(record).tobytes()) == (mode, image.tobytes())


@pytest.mark.parametrize(
    ("image", "image_format", "lost"),
    [
        (noise("RGBA"), "BMP", "transparency"),
        (noise("I;16"), "WEBP", "depth of more than 8 bits"),
        (noise("RGB").resize((300, 20)), "ICO", "size"),
        (Image.fromarray(np.array([[0, 300, -1]], np.int32)), "PPM", "values outside of 0 to"),
    ],
)
def test_images_that_pillow_would_change_silently_are_refused(
    tmp_path: Path, image: Image.Image, image_format: str, lost: str
) -> None:
    with pytest.raises(FieldError, match=f"cannot be written as {image_format} .this would lose its {lost}.*: choose"):
        written([image], tmp_path, image_format=image_format)


# Options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quality": 101, "image_format": "JPEG"}, OptionError, "quality must be from 1 to 100, got 101"),
        ({"quality": 90}, OptionError, "quality needs one of the formats .*: give image_format='JPEG'"),
        ({"image_format": "JPG"}, OptionError, ".*such as PNG or JPEG, got 'JPG'"),
        ({"fields": ("image", "image")}, OptionError, r"fields must be different names, got \('image', 'image'\)"),
        ({"fields": "a"}, OptionError, r"fields must be names, such as .*, got .*"),
        ({"classes": [1, 2]}, OptionError, r"classes must be names, such as \('cat', 'dog'\), got \(1, 2\)"),
    ],
)
def test_options_are_checked_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        write_store([], tmp_path / "s.lmdb", **options)
    assert list(tmp_path.iterdir()) == []
