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
# Not what was decoded, which is of many sizes, but what stands for a batch of it.
STANDS_FOR = (np.empty((BATCH, 3, SIZE, SIZE), np.uint8), np.empty(BATCH, np.int64))


def batches(place: Path, workers: int) -> Iterator[Any]:
    files = [path.read_bytes() for path in place.rglob("*.jpg")]
    random.shuffle(files)

    def decode(some: list[bytes]) -> None:
        for file in some:
            simplejpeg.decode_jpeg(file, "RGB", fastdct=False, fastupsample=False)

    with ThreadPoolExecutor(max(1, workers)) as pool:
        parts = [files[at : at + BATCH] for at in range(0, len(files) - BATCH + 1, BATCH)]
        for _ in pool.map(decode, parts):
            yield STANDS_FOR
