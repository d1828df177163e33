"""Loaders and decoders refuse masks that they would not crop together with the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import DecodeTensor, RandomResizedCrop
from dbloader.decoding.masks_and_boxes import refuse_masks
from dbloader.errors import OptionError
from tests.support.images import encoded, photo
from tests.support.stores import store_samples

HEIGHT, WIDTH = 30, 40


MASKS = {
    "array": np.zeros((HEIGHT, WIDTH), np.uint8),
    "channels first": np.zeros((3, HEIGHT, WIDTH), np.float32),
    "channels last": np.zeros((HEIGHT, WIDTH, 2), np.int64),
    "file": encoded(Image.new("L", (WIDTH, HEIGHT)), "PNG"),
    "turned": np.zeros((WIDTH, HEIGHT), bool),
}
OTHERS = {
    "number": 3, "text": "a cat on a mat", "share": 0.5, "yes": True, "embedding": np.zeros(40, np.float32),
    "box": np.array([1, 2, 30, 40]), "matrix": np.zeros((4, 4)), "bytes": b"no image", "none": None,
    "other": encoded(Image.new("L", (8, 8)), "PNG"),
    "list": [HEIGHT, WIDTH], "scalar": np.float32(1),
}  # fmt: skip


def store(place: Path, **values: Any) -> Path:
    store_samples([{"image": photo(n), "label": n, **values} for n in range(6)], place)
    return place


def loader(dataset: Any, **options: Any) -> Any:
    return create_loader(dataset, batch_size=3, device=None, **{"num_workers": 1, "input_size": 16, **options})


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_value_as_large_as_the_image_is_refused(mask: Any) -> None:
    for image in (photo(), np.zeros((HEIGHT, WIDTH, 3), np.uint8), Image.new("RGB", (WIDTH, HEIGHT))):
        for value in (mask, {"masks": [mask, 1]}, (2, mask)):
            with pytest.raises(OptionError, match=r"'mask' of sample 3 seems to be .* image, (30 x 40|40 x 30) p"):
                refuse_masks(image, {"mask": value}, "sample 3")
        refuse_masks(image, OTHERS, "sample 3")


def test_loader_refuses_a_mask_that_it_cannot_crop(tmp_path: Path) -> None:
    place = store(tmp_path / "s.lmdb", mask=MASKS["array"])
    datasets = (
        LMDBDataset(place, fields=("image", "label", "mask")),
        Subset(LMDBDataset(place, fields=("mask", "image")), [4, 2, 0]),
        LMDBDataset(place, decode=RandomResizedCrop(16), fields=("image", "mask")),
        LMDBDataset(place, transform=RandomResizedCrop(16), fields=("image", "mask")),
    )
    for number, dataset in enumerate(datasets):
        with pytest.raises(OptionError, match=r"'mask' of record . .* is as large as the image, 30 x 40 pixels"):
            next(iter(loader(dataset, input_size=16 if number < 2 else None)))
    parts: Any = ConcatDataset([datasets[0]])
    with pytest.raises(OptionError, match="'mask' of a sample seems to be a mask"):
        next(iter(loader(parts)))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_mask_of_a_later_record_is_refused_in_its_batch(tmp_path: Path, workers: Any) -> None:
    records = [{"image": photo(n), "label": n, "mask": MASKS["array"] if n == 4 else 0} for n in range(6)]
    store_samples(records, tmp_path / "s.lmdb")
    dataset = LMDBDataset(tmp_path / "s.lmdb", fields=("image", "mask"))
    with loader(dataset, worker_type=workers, normalize=None) as batches:
        iterator = iter(batches)
        next(iterator)
        with pytest.raises(OptionError, match="'mask' of record 4 "):
            next(iterator)


def both(samples: list[Any]) -> Any:
    return torch.stack([torch.from_numpy(np.dstack([np.array(s["image"]), s["mask"]])) for s in samples])


def test_mask_of_an_uncropped_image_is_accepted(tmp_path: Path) -> None:
    place = store(tmp_path / "s.lmdb", mask=MASKS["array"])
    fields = ("image", "mask")
    assert LMDBDataset(place, fields=fields)[0]["mask"].shape == (HEIGHT, WIDTH)
    assert LMDBDataset(place, decode=DecodeTensor(), fields=fields)[0]["image"].shape == (3, HEIGHT, WIDTH)
    without_image = LMDBDataset(place, decode=RandomResizedCrop(16), fields=("label", "mask"))
    assert without_image[0]["mask"].shape == (HEIGHT, WIDTH)
    options: Any = {"input_size": None, "transform": None, "normalize": None}
    batches = loader(LMDBDataset(place, fields=fields), collate_fn=both, **options)
    assert next(iter(batches)).shape == (3, HEIGHT, WIDTH, 4)


@pytest.mark.parametrize("fields", [None, ("image", "label")])
def test_batch_without_tensor_needs_normalize_none(tmp_path: Path, fields: Any) -> None:
    dataset = LMDBDataset(store(tmp_path / "s.lmdb"), fields=fields)
    message = "to be normalized, a batch must have a tensor of images, as its first part or as 'image'"
    with pytest.raises(OptionError, match=message):
        next(iter(loader(dataset, collate_fn=list)))
    samples = next(iter(loader(dataset, collate_fn=list, normalize=None)))
    assert len(samples) == 3
    assert (samples[0]["image"] if fields else samples[0][0]).shape == (3, 16, 16)
