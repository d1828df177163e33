"""Masks, boxes and other fields that belong to the pixels of an image are cropped like the image.

Each record has a photograph, and fields of the same size: a mask with a palette, a depth map of 16 bits and a disparity
map of floats. It also has a partner image of twice the size, and boxes. The mask has another value in each box.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import Crop, Decoder, DecodeTensor, RandomCrop, RandomResizedCrop, ResizeCenterCrop, decode_pil
from dbloader.device import Normalize
from dbloader.errors import OptionError
from dbloader.sampling.rng import SeededIndices
from tests.support.images import encoded, photo
from tests.support.jpegs import turned_exif
from tests.support.stores import store_samples

LENGTH = 8
FILES = ("mask", "depth", "disparity", "large")
SIZELESS: dict[str, Any] = {"batch_size": 4, "device": None, "normalize": None}
CPU: dict[str, Any] = {**SIZELESS, "input_size": (20, 16)}
NOT_CROPPED = "field 'mask' of record 0 .* would not be cropped together with its image"
NORMALIZED = CPU | {"normalize": Normalize((0.5,) * 3, (0.5,) * 3)}


class Framed(Decoder):
    """A decoder that crops an image and places the crop in a black frame."""

    size = (16, 26)

    def choose_crop(self, random_numbers: Any, width: int, height: int) -> Crop:
        return Crop(8, 4, 20, 10, flip=width % 2 == 0, resized=(10, 20), window=(-3, -4))


def boxes_of(index: int) -> np.ndarray[Any, Any]:
    """Return three boxes that do not overlap, and one box without width."""
    left = index % 3
    return np.array([[left, 1, 12, 9], [14, 2, 30 - left, 28], [33, 20, 40, 30], [5, 5, 5, 9]], np.float32)


def mask_of(index: int) -> Image.Image:
    width, height = size_of(index)
    mask = np.zeros((height, width), np.uint8)
    for value, (left, top, right, bottom) in enumerate(boxes_of(index).astype(int), 1):
        mask[top:bottom, left:right] = value
    image = Image.fromarray(mask).convert("P")
    image.putdata(mask.ravel().tolist())
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    return image


def size_of(index: int) -> tuple[int, int]:
    return 40 + index, 30 + index // 2


def sample_of(index: int) -> dict[str, Any]:
    width, height = size_of(index)
    rng = np.random.default_rng(index)
    return {
        "image": photo(index, width, height),
        "label": index % 3,
        "name": f"{index}.jpg",
        "mask": encoded(mask_of(index), "PNG"),
        "depth": encoded(Image.fromarray(rng.integers(0, 2**16, (height, width), dtype=np.uint16)), "PNG"),
        "disparity": encoded(Image.fromarray(rng.normal(size=(height, width)).astype(np.float32)), "TIFF"),
        "large": photo(100 + index, 2 * width, 2 * height),
        "boxes": boxes_of(index),
        "box_labels": np.arange(1, 5),
        "iscrowd": [1, 0, 1, 0],
    }


def make_fields(place: Any, *changed: dict[str, Any]) -> Any:
    """Write a store, with the first samples changed."""
    samples = [sample_of(index) for index in range(LENGTH)]
    for sample, change in zip(samples, changed, strict=False):
        sample.update(change)
    store_samples(samples, place, file_fields=FILES)
    return place


def seeded(*indices: int) -> SeededIndices:
    return SeededIndices(indices, 5, 2, range(30, 30 + len(indices)))


def nearest(pixels: np.ndarray[Any, Any], size: tuple[int, int]) -> np.ndarray[Any, Any]:
    height, width = pixels.shape
    rows = [int((row + 0.5) * height / size[0]) for row in range(size[0])]
    columns = [int((column + 0.5) * width / size[1]) for column in range(size[1])]
    return pixels[rows][:, columns]


def smooth(pixels: np.ndarray[Any, Any], size: tuple[int, int], mode: str) -> torch.Tensor:
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    image = image.contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.interpolate(image, size, mode=mode, antialias=True)[0]


def extent(mask: Any, value: int) -> list[int]:
    """Return the box around all pixels that equal ``value``, or [] if there are none."""
    rows, columns = np.nonzero(np.asarray(mask) == value)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else []


def opened(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)))


def first(loader: Any) -> Any:
    """Return the first batch, and stop the loader."""
    try:
        return next(iter(loader))
    finally:
        loader.close()


def whole(samples: list[Any]) -> list[Any]:
    return samples


def negated(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "label": -sample["label"]}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store of ``make_fields``."""
    return make_fields(tmp_path_factory.mktemp("stores") / "fields.lmdb")


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A path without a store."""
    return tmp_path / "fresh.lmdb"


# Files and names


def test_file_fields_keep_their_mode_and_values(stored: Any) -> None:
    with LMDBDataset(stored, fields=("mask", "depth", "disparity", "large", "image")) as dataset:
        for index, sample in enumerate(dataset[:]):
            assert [value.mode for value in sample.values()] == ["P", "I;16", "F", "RGB", "RGB"]
            assert sample["mask"].convert("RGB").tobytes() == mask_of(index).convert("RGB").tobytes()
            for name in ("mask", "depth", "disparity"):
                assert np.array_equal(sample[name], opened(sample_of(index)[name]))
    with LMDBDataset(stored, fields=("mask", "image"), decode=None) as dataset:
        assert dataset[1] == {name: sample_of(1)[name] for name in ("mask", "image")}


def test_damaged_file_field_names_record_and_field(fresh: Any) -> None:
    large = sample_of(1)["large"]
    make_fields(fresh, {}, {"mask": sample_of(1)["mask"][:-40], "large": large[:300] + large[320:]})
    for name in ("mask", "large"):
        for decode in (decode_pil, RandomResizedCrop(16)):
            with LMDBDataset(fresh, fields=("image", name), decode=decode) as dataset:
                assert len(dataset[0]) == 2
                for collate_fn in (None, whole):
                    loader = create_loader(dataset, **SIZELESS, transform=None, num_workers=0, collate_fn=collate_fn)
                    with pytest.raises(Exception, match=f"field '{name}': the image does not decode") as raised:
                        first(loader)
                    assert any("in record 1 (1.jpg) of " in note for note in raised.value.__notes__)


def test_mapping_renames_fields_in_samples_batches_and_repr(stored: Any) -> None:
    names = {"pixel_values": "image", "labels": "label", "where": "boxes", "kinds": "box_labels", "m": "mask"}
    with LMDBDataset(stored, None, str, fields=names) as dataset:
        assert dataset.fields == names
        sample = dataset[4]
        assert list(sample) == [*names]
        assert (sample["labels"], sample["pixel_values"].mode, sample["m"].mode) == ("1", "RGB", "P")
        assert "pixel_values (image), labels (label)" in repr(dataset)
    with LMDBDataset(stored, fields={"pixel_values": "image", "labels": "label", "m": "mask"}) as dataset:
        for data in (dataset, Subset(dataset, range(LENGTH))):
            batch = first(create_loader(data, **NORMALIZED, num_workers=0))
            assert batch["pixel_values"].dtype is torch.float32
            assert batch["labels"].tolist() == [0, 1, 2, 0]
            assert (batch["m"].shape, batch["m"].dtype) == ((4, 20, 16), torch.uint8)
    with LMDBDataset(stored, fields={"pixel_values": "image", "labels": "label"}) as dataset:
        parts: Any = ConcatDataset([dataset])
        batch = first(create_loader(parts, **NORMALIZED, num_workers=0))
        assert batch["pixel_values"].shape == (4, 3, 20, 16)


# Transforms of whole samples


def test_transforms_receives_image_and_label_or_the_whole_dict(stored: Any) -> None:
    with LMDBDataset(stored, transforms=lambda image, label: (image.size, -label)) as dataset:
        assert dataset[2] == dataset[2:3][0] == (size_of(2), -2)
    with LMDBDataset(stored, transforms=negated, fields=("label", "name")) as dataset:
        assert dataset[5] == {"label": -2, "name": "5.jpg"}
    with LMDBDataset(stored, transforms=negated, fields=("image", "label", "mask")) as dataset:
        # without an input size, the loader does not crop
        loader = create_loader(dataset, **SIZELESS, num_workers=0, collate_fn=whole)
        assert [sample["image"].size for sample in first(loader)] == [size_of(n) for n in range(4)]
        loader = create_loader(dataset, **SIZELESS, num_workers=0, transform=ResizeCenterCrop(16))
        batch = first(loader)
        assert (batch["mask"].shape, batch["label"].tolist()) == ((4, 16, 16), [0, 1, 2, 0])
    with LMDBDataset(stored, transforms=negated, decode=RandomResizedCrop(16), fields=("image", "label")) as dataset:
        assert first(create_loader(dataset, **SIZELESS, num_workers=0))["label"].tolist() == [0, -1, -2, 0]


# One crop for all fields


@pytest.mark.parametrize(
    "decode",
    [
        RandomResizedCrop((20, 16)),
        RandomResizedCrop((20, 16), interpolation="bicubic"),
        RandomCrop((24, 50), padding=(8, 4)),
        ResizeCenterCrop((34, 50), resize=32),
        DecodeTensor(),
    ],
)
def test_all_fields_get_the_crop_of_the_image(stored: Any, decode: Any) -> None:
    indices = seeded(*range(LENGTH))
    with LMDBDataset(stored, decode=decode, fields=("image", *FILES)) as dataset:
        samples = dataset.__getitems__(indices)
    rows = indices.rng.uniform(decode.draws, "decode") if decode.draws else [()] * LENGTH
    flips = 0
    for index, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        given = sample_of(index)
        assert torch.equal(sample["image"], decode(given["image"], row))
        crop = decode.choose_crop(row, *size_of(index))
        flips += crop.flip
        resized = crop.resized or decode.size or (crop.height, crop.width)
        size = decode.size or resized
        for name, k in (("mask", 1), ("depth", 1), ("disparity", 1), ("large", 2)):
            pixels = opened(given[name])
            top, left = crop.top * k, crop.left * k
            pixels = pixels[top : top + crop.height * k, left : left + crop.width * k]
            large = (resized[0] * k, resized[1] * k)
            part = (
                smooth(pixels, large, crop.interpolation)
                if name == "large"
                else torch.from_numpy(nearest(pixels, large).astype(float))
            )
            expected = torch.zeros(*part.shape[:-2], size[0] * k, size[1] * k, dtype=part.dtype)
            (y, x), (height, width) = ((-w * k if w < 0 else 0 for w in crop.window), part.shape[-2:])
            part = part[..., max(0, crop.window[0] * k) :, max(0, crop.window[1] * k) :]
            part = part[..., : size[0] * k, : size[1] * k]
            height, width = part.shape[-2:]
            expected[..., y : y + height, x : x + width] = part
            if crop.flip:
                expected = expected.flip(-1)
            assert torch.equal(sample[name].to(expected.dtype), expected), (index, name)
    assert {name: value.dtype for name, value in samples[0].items()} == {
        "image": torch.uint8, "mask": torch.uint8, "depth": torch.int32, "disparity": torch.float32,
        "large": torch.uint8,
    }  # fmt: skip
    assert flips in (range(1, LENGTH) if decode.draws else (0,))


@pytest.mark.parametrize(
    ("decode", "tolerance"),
    [  # nearest-neighbor resizing moves an edge by up to half a pixel
        (RandomResizedCrop(200, scale=(0.1, 0.6)), 0.5),
        (ResizeCenterCrop(80, resize=160), 0.5),
        (RandomCrop((20, 24), padding=6), 0),
        (Framed(), 0),
    ],
)
def test_boxes_follow_their_pixels_and_empty_boxes_are_dropped(stored: Any, decode: Any, tolerance: float) -> None:
    fields = ("image", "mask", "boxes", "box_labels", "iscrowd")
    counts = set()
    indices = seeded(*[*range(LENGTH)] * 4)
    with LMDBDataset(stored, decode=decode, fields=fields) as dataset:
        for sample in dataset.__getitems__(indices):
            counts.add(len(sample["boxes"]))
            assert sample["boxes"].dtype == np.float32
            assert sorted(sample["box_labels"]) == [v for v in range(1, 5) if extent(sample["mask"], v)]
            assert sample["iscrowd"] == [label % 2 for label in sample["box_labels"]]
            for box, value in zip(sample["boxes"], sample["box_labels"], strict=True):
                assert np.abs(box - extent(sample["mask"], value)).max() <= tolerance
    assert min(counts) < 3  # some crop removed more than the box without width


def test_field_with_fewer_rows_than_boxes_is_refused(fresh: Any) -> None:
    make_fields(fresh, {"box_labels": np.arange(3)})
    with LMDBDataset(fresh, decode=RandomResizedCrop(16), fields=("image", "boxes", "box_labels")) as dataset:
        with pytest.raises(OptionError, match="field 'box_labels' has 3 rows, but 'boxes' has 4"):
            dataset[0]
        assert len(dataset[1]) == 3


@pytest.mark.parametrize(
    "boxes", ["1 2 3 4", [1, 2, 3, 4], [[1, 2, 3]], [[9, 9, 2, 2]], [[0, 0, float("nan"), 4]], np.zeros((2, 5))]
)
def test_invalid_boxes_are_refused(fresh: Any, boxes: Any) -> None:
    make_fields(fresh, {"boxes": boxes})
    with LMDBDataset(fresh, decode=RandomResizedCrop(16), fields=("image", "boxes")) as dataset:
        with pytest.raises(OptionError, match="field 'boxes' must have a row x_min, y_min, x_max, y_max in pixels"):
            dataset[0]
        assert dataset[1]["boxes"].shape[1] == 4  # the crop may have removed all boxes


@pytest.mark.parametrize("exif", [False, True])
def test_field_with_another_size_than_the_image_is_refused(fresh: Any, exif: bool) -> None:
    sizes = {"mask": (41, 30), "depth": (30, 40), "disparity": (80, 30), "large": (39, 29)}
    make_fields(fresh, *({name: encoded(Image.new("L", size), "PNG")} for name, size in sizes.items()))
    for index, (name, size) in enumerate(sizes.items()):
        decode = RandomResizedCrop(16, exif_transpose=exif)
        with LMDBDataset(fresh, decode=decode, fields=("image", name)) as dataset:
            message = f"field '{name}': it has {size[0]} x {size[1]} pixels, but its image has {40 + index} x "
            remedy = r".* times the image's \(exif_transpose=True turns the image\)"
            with pytest.raises(OptionError, match=message + remedy) as raised:
                dataset[index]
            assert f"in record {index} " in raised.value.__notes__[0]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_boxes_and_fields_that_have_the_orientation_of_the_image(fresh: Any, orientation: int) -> None:
    exif = turned_exif(orientation)
    turned = encoded(Image.open(io.BytesIO(photo(0))), "JPEG", exif=exif, quality=95)
    mask = encoded(mask_of(0), "PNG", exif=exif)
    make_fields(fresh, {"image": turned, "mask": mask})
    decode = RandomResizedCrop(200, scale=(0.5, 1), exif_transpose=True)
    with LMDBDataset(fresh, decode=decode, fields=("image", "mask", "boxes", "box_labels")) as dataset:
        for sample in dataset.__getitems__(seeded(0, 0, 0)):
            assert len(sample["boxes"])
            for box, value in zip(sample["boxes"], sample["box_labels"], strict=True):
                # the crop enlarges a pixel up to 7 times
                assert np.abs(box - extent(sample["mask"], value)).max() <= 3.5
    with LMDBDataset(fresh, decode=decode, fields=("image", "depth")) as dataset:
        if orientation >= 5:
            with pytest.raises(OptionError, match="field 'depth': it has 40 x 30 pixels, but its image has 30 x 40"):
                dataset[0]
        else:
            assert dataset[0]["depth"].shape == (200, 200)
    plain = RandomResizedCrop(16)
    with LMDBDataset(fresh, decode=plain, fields=("image", "mask", "depth")) as dataset:
        (sample,) = dataset.__getitems__(seeded(0))
        assert torch.equal(sample["image"], plain(turned, seeded(0).rng.uniform(plain.draws, "decode")[0]))


@pytest.mark.parametrize("orientation", [3, 6])
def test_boxes_of_a_turned_tiff_are_not_turned_again(fresh: Any, orientation: int) -> None:
    image = encoded(Image.new("RGB", (40, 30)), "TIFF", tiffinfo={274: orientation})
    make_fields(fresh, {"image": image})
    both = []
    for exif in (False, True):
        decode = RandomResizedCrop(16, scale=(0.9, 1), exif_transpose=exif)
        with LMDBDataset(fresh, decode=decode, fields=("image", "boxes")) as dataset:
            both.append(dataset.__getitems__(seeded(0))[0]["boxes"])
    assert np.array_equal(*both)


def test_boxes_may_be_lists(stored: Any, fresh: Any) -> None:
    make_fields(fresh, {"boxes": boxes_of(0).tolist()}, {"boxes": [], "box_labels": []})
    options: dict[str, Any] = {"decode": RandomResizedCrop(16), "fields": ("image", "boxes", "box_labels")}
    with LMDBDataset(stored, **options) as arrays, LMDBDataset(fresh, **options) as lists:
        expected, (cropped, none) = arrays.__getitems__(seeded(0)), lists.__getitems__(seeded(0, 1))
    assert np.array_equal(cropped["boxes"], expected[0]["boxes"])
    assert np.array_equal(cropped["box_labels"], expected[0]["box_labels"])
    assert none["boxes"].shape == (0, 4)


# Options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fields": {"pixel_values": "images"}}, OptionError, "has a field 'images'; the fields are name, "),
        ({"fields": {"a": "image", "b": "image"}}, OptionError, "may give 'image' only one name, got "),
        ({"fields": ("mask",), "decode": RandomResizedCrop(16)}, OptionError, NOT_CROPPED),
        ({"fields": ("image", "mask"), "transform": RandomResizedCrop(16)}, OptionError, NOT_CROPPED),
        (
            {"transforms": negated, "transform": str},
            OptionError,
            "transforms takes whole samples: pass it alone",
        ),
        (
            {"transforms": negated, "target_transform": str},
            OptionError,
            "without transform and target_transform",
        ),
        ({"transforms": 3}, TypeError, "transforms must be a callable or None, got 3"),
        ({"transforms": lambda image, label: None}, TypeError, "transforms= must return the image and the label, "),
        ({"transforms": lambda image, label: image}, TypeError, r"transforms= must return .*, got "),
    ],
)
def test_wrong_options_are_refused(stored: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message), LMDBDataset(stored, **options) as dataset:
        dataset[0]


# Workers


@pytest.mark.parametrize(
    "workers", [("threads", 0), ("threads", 2), pytest.param(("processes", 2), marks=pytest.mark.slow)]
)
def test_batches_depend_only_on_seed_and_epoch(stored: Any, workers: Any) -> None:
    names = ("image", "label", "mask", "depth", "disparity", "large", "boxes", "box_labels", "iscrowd")
    kind, count = workers
    with LMDBDataset(stored, fields=names) as dataset:
        options: dict[str, Any] = {**CPU, "is_training": True, "seed": 3}
        loader = create_loader(dataset, **options, worker_type=kind, num_workers=count)
        epochs = [list(loader), list(loader)]
        loader.close()
        direct = LMDBDataset(stored, fields=names, decode=RandomResizedCrop((20, 16)))
        batches: Any = create_loader(dataset, **options, num_workers=0).batch_sampler
        for epoch in range(2):
            batches.sampler.set_epoch(epoch)
            for batch, indices in zip(epochs[epoch], batches, strict=True):
                for at, sample in enumerate(direct.__getitems__(indices)):
                    assert all(np.array_equal(batch[name][at], sample[name]) for name in names)
        direct.close()
    assert not torch.equal(epochs[0][0]["mask"], epochs[1][0]["mask"])


def test_dataloader_of_torch_collates_fields(stored: Any) -> None:
    with LMDBDataset(stored, decode=ResizeCenterCrop(16), fields=("image", "mask", "large")) as dataset:
        batch = next(iter(DataLoader(dataset, 4)))
        assert [value.shape for value in batch.values()] == [(4, 3, 16, 16), (4, 16, 16), (4, 3, 32, 32)]
