"""A store with damaged records, and loaders that skip them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dbloader.conversion.convert import convert
from dbloader.decoding.crops import RandomResizedCrop
from dbloader.ext.batches.replacing import Skip
from dbloader.sampling.rng import SampleRNG
from dbloader.sampling.shuffle import ShuffleSampler
from tests.support.images import photo, plant

LENGTH = 24
SEED = 5
ORDER = [*ShuffleSampler(range(LENGTH), seed=SEED)]
# In the first epoch, UNKNOWN follows CUT, and FLIPPED is the last sample.
CUT, UNKNOWN, FLIPPED = ORDER[5], ORDER[6], ORDER[-1]
DAMAGED = (CUT, UNKNOWN, FLIPPED)
SKIP: dict[str, Any] = {
    "batch_size": 4, "input_size": 16, "device": None, "normalize": None, "is_training": True, "seed": SEED,
    "num_workers": 0, "on_error": Skip(0.2),
}  # fmt: skip
ENGINES = [
    {"worker_type": "threads", "num_workers": 0},
    {"worker_type": "threads", "num_workers": 2},
    {"worker_type": "processes", "num_workers": 0},
    pytest.param({"worker_type": "processes", "num_workers": 2}, marks=pytest.mark.slow),
]


def name_of(index: int) -> str:
    return f"{index % 2}/{index:02}.jpg"


def flip(place: Path, data: bytes) -> None:
    """Flip a bit in the middle of some bytes in a file."""
    stored = bytearray(place.read_bytes())
    at = stored.index(data) + len(data) // 2
    stored[at] ^= 1
    place.write_bytes(stored)


def write_damaged(folder: Path) -> Path:
    """Write a store of three damaged images: two were damaged as files, and one is damaged in the store."""
    files = {name_of(index): photo(index) for index in range(LENGTH)}
    files |= {name_of(CUT): photo(CUT)[:-300], name_of(UNKNOWN): b"no image"}
    listing = "\n".join(["path,label", *(f"{name_of(index)},{index}" for index in range(LENGTH))])
    (folder / "listing.csv").write_text(listing)
    place = folder / "photos.lmdb"
    convert(plant(folder / "images", files), place, listing=folder / "listing.csv", check="none")
    flip(place, photo(FLIPPED))
    return place


def replaced(epoch: int, position: int) -> int:
    """Return the index at a position of an epoch, or, if its record is damaged, the next index without damage."""
    sampler = ShuffleSampler(range(LENGTH), 1, 0, seed=SEED)
    sampler.set_epoch(epoch)
    order: list[int] = [*sampler]
    return next(index for index in order[position:] + order if index not in DAMAGED)


def expected(epoch: int, positions: range = range(LENGTH)) -> list[list[torch.Tensor]]:
    decode = RandomResizedCrop(16)
    images, labels = [], []
    for position in positions:
        numbers = SampleRNG(SEED, epoch, [position]).uniform(decode.draws, "decode")[0]
        labels.append(replaced(epoch, position))
        images.append(decode(photo(labels[-1]), numbers))
    return [[torch.stack(images[n : n + 4]), torch.tensor(labels[n : n + 4])] for n in range(0, len(labels), 4)]


def all_of(loader: Any) -> list[Any]:
    return [[part.clone() for part in batch] for batch in loader]
