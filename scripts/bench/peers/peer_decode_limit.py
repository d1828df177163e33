"""The limit of libjpeg-turbo: threads decode whole images from memory with simplejpeg, and do nothing else."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from contender import SIZE
from peer_imagefolder import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["batches", "prepare"]

BATCH = 64


def batches(place: Path, workers: int, batch: int = BATCH, drawn: int | None = None) -> Iterator[Any]:
    """Decode all images once, or ``drawn`` images with repetition. Yield a batch for each ``batch`` images."""
    # An empty batch of the right size, because the decoded images differ in size.
    stands_for = np.empty((batch, 3, SIZE, SIZE), np.uint8), np.empty(batch, np.int64)
    files = [path.read_bytes() for path in place.rglob("*.jpg")]
    random.shuffle(files)
    if drawn is not None:
        files = random.choices(files, k=drawn)

    def decode(some: list[bytes]) -> None:
        for file in some:
            simplejpeg.decode_jpeg(file, "RGB", fastdct=False, fastupsample=False)

    with ThreadPoolExecutor(max(1, workers)) as pool:
        parts = [files[at : at + batch] for at in range(0, len(files) - batch + 1, batch)]
        for _ in pool.map(decode, parts):
            yield stands_for
