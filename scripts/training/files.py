"""The files of a folder, as peers take them to make their own form of them."""

from __future__ import annotations

import io
import os
import random
from typing import TYPE_CHECKING

from contender import SIZE
from PIL import Image

from dbloader.loading.benchmark.folder import FolderDataset, PillowCrop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch


def shuffled_files(source: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each file's bytes and label, in a random order: some peers shuffle only nearby samples."""
    dataset = FolderDataset(source, SIZE)
    for name, label in random.Random(0).sample(dataset.samples, len(dataset)):
        with open(os.path.join(dataset.root, name), "rb") as file:  # noqa: PTH118, PTH123 - a path of bytes
            yield file.read(), label


class Transform:
    """From a file's bytes to a cropped image, as most peers' users do it: by Pillow and torchvision's transforms."""

    def __init__(self) -> None:
        self.crop = PillowCrop(SIZE)

    def __call__(self, data: bytes) -> torch.Tensor:
        return self.crop(Image.open(io.BytesIO(data)))
