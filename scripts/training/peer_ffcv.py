"""FFCV: its own file of JPEGs (encoded anew, quality 90), libjpeg-turbo and OpenCV in threads of compiled code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from contender import SIZE
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from dbloader.benchmarking.folder import FolderDataset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Pictures:
    def __init__(self, source: Path) -> None:
        self.files = FolderDataset(source, SIZE)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        name, label = self.files.samples[index]
        return Image.open(os.path.join(self.files.root, name)).convert("RGB"), label  # noqa: PTH118 - bytes


def prepare(source: Path, place: Path, mode: Literal["jpg", "raw"] = "jpg") -> None:
    fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=90), "label": IntField()}
    DatasetWriter(str(place), fields, num_workers=2).from_indexed_dataset(Pictures(source))


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
