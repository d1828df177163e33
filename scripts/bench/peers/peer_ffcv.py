"""FFCV: its own file of JPEGs, libjpeg-turbo and OpenCV in threads of compiled code.

FFCV would encode the images again, smaller and with less color. It gets the original files instead, so all loaders
decode the same images.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from contender import SIZE
from ffcv.fields import IntField, RGBImageField, rgb_image
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from folder import FolderDataset
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterable


class Pictures:
    """Images for FFCV's writer, which stores each as its original file."""

    def __init__(self, source: Path) -> None:
        self.files = FolderDataset(source)
        self.last = b""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, label = self.files.samples[index]
        self.last = Path(path).read_bytes()
        return Image.open(io.BytesIO(self.last)).convert("RGB"), label

    def encode(self, *_: Any) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.last, np.uint8)


def prepare(source: Path, place: Path, mode: Literal["jpg", "raw"] = "jpg") -> None:
    fields = {"image": RGBImageField(write_mode=mode), "label": IntField()}
    pictures = Pictures(source)
    rgb_image.encode_jpeg = pictures.encode  # the process that has just asked for the image calls this
    DatasetWriter(str(place), fields, num_workers=2).from_indexed_dataset(pictures)


def batches(place: Path, workers: int) -> Iterable[Any]:
    return Loader(  # type: ignore[no-any-return] # it ships no types
        str(place),
        batch_size=64,
        num_workers=max(1, workers),
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={
            "image": [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), ToTensor(),
                      ToTorchImage()],
            "label": [IntDecoder(), ToTensor()],
        },
    )  # fmt: skip
