"""Image folders as torchvision's ImageFolder and transforms read them: one file per image, decoded by Pillow."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from contender import SIZE
from PIL import Image
from torch.utils.data import Dataset
from typing_extensions import override

from dbloader.decoding.crops import RandomResizedCrop

if TYPE_CHECKING:
    from collections.abc import Iterator


class Transform:
    """Turns the bytes of a file into a random crop, resized and perhaps flipped, as torchvision's transforms do."""

    def __init__(self) -> None:
        self.crop = RandomResizedCrop(SIZE)

    def __call__(self, data: bytes) -> torch.Tensor:
        """Return uint8, shape (3, SIZE, SIZE); resized bilinearly, which Pillow does with antialiasing."""
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left, top, width, height, flip, *_ = self.crop.choose_crop(torch.rand(self.crop.draws).tolist(), *image.size)
        box = (left, top, left + width, top + height)
        image = image.crop(box).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        # NumPy makes this copy, because torch would divide even a small copy among one thread per core.
        return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))


class FolderDataset(Dataset[tuple[torch.Tensor, int]]):
    """The images in a folder that has a folder for each class, as (image, label)."""

    def __init__(self, folder: Path) -> None:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        self.samples = [(str(file), label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]
        self.transform = Transform()

    def __len__(self) -> int:
        return len(self.samples)

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        return self.transform(Path(path).read_bytes()), label


def shuffled_files(source: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each file's bytes and label in a random order, since some peers shuffle only nearby samples."""
    samples = FolderDataset(source).samples
    for path, label in random.Random(0).sample(samples, len(samples)):
        yield Path(path).read_bytes(), label
