"""Images of a folder as trainings commonly read them, to compare: a file each, Pillow, and torch's DataLoader."""

from __future__ import annotations

import itertools
import os

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from typing_extensions import override

from dbloader.decoding.random_crop import RandomResizedCrop
from dbloader.errors import DamagedImageError
from dbloader.images.pillow import open_pillow, scale_to_8_bits
from dbloader.sources.base import Problem, readable
from dbloader.sources.folder import scan


class PillowCrop:
    """Crops an image at random, resizes the part, and mirrors it at random, as torchvision's transforms do to Pillow's.

    Args:
        size: Height and width of what comes of it in pixels.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.crop = RandomResizedCrop(size)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8, shape (3, size, size), RGB, 0 to 255; resized bilinearly, which Pillow does with antialiasing.

        Args:
            image: Of any mode and size.
        """
        image = scale_to_8_bits(image).convert("RGB")
        left, top, width, height, flip, *_ = self.crop.choose(torch.rand(self.crop.draws).tolist(), *image.size)
        box = (left, top, left + width, top + height)
        image = image.crop(box).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        # By NumPy: torch would divide so small a copy among threads, in each process as many as there are processors.
        return torch.from_numpy(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))


class FolderDataset(Dataset[tuple[torch.Tensor, int]]):
    """The images of a folder, cropped at random, as torchvision's ImageFolder and transforms give them.

    A sample is (image, label): the file is opened and decoded whole by Pillow, and cropped by PillowCrop. It is uint8,
    shape (3, size, size), RGB, 0 to 255. An image that does not decode is left out: the next one comes in its place.
    It is tried once, by all processes together, so that it takes no time from those that follow.

    Args:
        folder: It holds a folder for each class.
        size: Height and width of the images in pixels.

    Attributes:
        place: The folder, as it may be shown.
        samples: Path below it, in bytes, and label of each image.
        bad: Whether an image was found not to decode: bool, shape (len(samples),), in memory that worker processes
            share.

    Raises:
        SourceNotFoundError: There is no such folder.
        SourceError: It cannot be read, or there is no image in it.
    """

    def __init__(self, folder: str | os.PathLike[str], size: int) -> None:
        source = scan(folder, listing=False)
        self.place = source.place
        self.root = os.fsencode(source.root)
        self.transform = PillowCrop(size)
        entries = [entry for entry in source.entries() if not isinstance(entry, Problem)]
        self.samples = [(entry.path, entry.label or 0) for entry in entries]
        self.bad = torch.zeros(len(self.samples), dtype=torch.bool)
        self.bad.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def left_out(self) -> int:
        """Number of images that were found not to decode so far; what was not read may hold more."""
        return int(self.bad.sum())

    def __len__(self) -> int:
        return len(self.samples)

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        reason = ""
        for at in itertools.chain(range(index, len(self)), range(index)):
            if self.bad[at]:
                continue
            name, label = self.samples[at]
            path = os.path.join(self.root, name)  # noqa: PTH118 - bytes, as the file system has them
            try:
                with open(path, "rb") as file, open_pillow(file) as image:  # noqa: PTH123 - bytes
                    return self.transform(image), label
            except Exception as error:  # a Pillow plugin raises whatever its parsing meets
                self.bad[at] = True
                reason = reason or f": {readable(path)} does not: {error}"
        raise DamagedImageError(f"{self.place}: none of its {len(self):,} images decodes{reason}")
