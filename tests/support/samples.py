"""Samples, datasets and loaders from which the tests write stores."""

from __future__ import annotations

import dataclasses
import io
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from typing_extensions import override

from dbloader.records.record import Record
from tests.support.images import encoded


class Items(Dataset[Any]):
    """A map-style dataset of any items. It raises no IndexError at its end."""

    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items = items
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    @override
    def __getitem__(self, index: int) -> Any:
        return self.items[index % len(self.items)]


class Stream(IterableDataset[Any]):
    """An iterable dataset whose items are divided among its workers."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    @override
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        yield from self.items[worker.id :: worker.num_workers] if worker else self.items


class Sample(NamedTuple):
    image: Any
    label: int
    caption: str = "a caption"


@dataclasses.dataclass
class Annotated:
    image: Any
    label: int
    caption: str = "a caption"


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


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, with equal types, dtypes and shapes at every level.

    Every NaN equals every other NaN.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return bool(one.dtype == other.dtype and one.equal(other))
    if isinstance(one, np.ndarray):
        # Compare fields, because the padding between them may differ.
        return bool(one.dtype == other.dtype and one.shape == other.shape and _bytes_of(one) == _bytes_of(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def _bytes_of(array: np.ndarray[Any, Any]) -> Any:
    """Return the bytes of an array, or of each field of a structured array."""
    if array.dtype.names is not None:
        return {name: _bytes_of(array[name]) for name in array.dtype.names}
    return array.tobytes()


IMAGE = encoded(noise("RGB"), "PNG")
