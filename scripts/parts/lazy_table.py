"""Print how much of the images of a store is decoded for transforms of torchvision and timm, for docs/transforms.md.

    python scripts/parts/lazy_table.py [--images 200]

It runs where torchvision and timm are installed. The images are drawn, and have 500 x 375 pixels, a common size of
photographs for training. A share is the pixels that libjpeg-turbo decoded / all pixels in the files.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from timm.data import create_transform
from torchvision import transforms as v1
from torchvision.transforms import v2

from dbloader import ImageFormat, LMDBDataset, convert

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH, HEIGHT = 500, 375

TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "v2 `RandomResizedCrop(224)`, flip, `PILToTensor`": v2.Compose(
        [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    ),
    "v1 the same": v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "v2 `RandomCrop(224)`, `PILToTensor`": v2.Compose([v2.RandomCrop(224), v2.PILToTensor()]),
    "v1 `RandomCrop(224, padding=4)`, `PILToTensor`": v1.Compose([v1.RandomCrop(224, padding=4), v1.PILToTensor()]),
    "v2 `RandomCrop(224)`, `TrivialAugmentWide`, `PILToTensor`": v2.Compose(
        [v2.RandomCrop(224), v2.TrivialAugmentWide(), v2.PILToTensor()]
    ),
    "v2 `CenterCrop(224)`, `PILToTensor`": v2.Compose([v2.CenterCrop(224), v2.PILToTensor()]),
    "v2 `FiveCrop(100)`": lambda image: [np.asarray(crop) for crop in v2.FiveCrop(100)(image)],
    "v2 flip, `RandomResizedCrop(224)`, `PILToTensor`": v2.Compose(
        [v2.RandomHorizontalFlip(1.0), v2.RandomResizedCrop(224), v2.PILToTensor()]
    ),
    "v2 `ToImage`, `RandomResizedCrop(224)`": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(224)]),
    "v2 `Resize(256)`, `CenterCrop(224)`, `PILToTensor`": v2.Compose(
        [v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()]
    ),
    "v1 `Resize(128)`, `CenterCrop(112)`, `ToTensor`": v1.Compose([v1.Resize(128), v1.CenterCrop(112), v1.ToTensor()]),
    "timm `create_transform(224, is_training=True)`": create_transform(224, is_training=True),
    "timm with `auto_augment='rand-m9-mstd0.5'`": create_transform(
        224, is_training=True, auto_augment="rand-m9-mstd0.5"
    ),
    "timm `create_transform(224)`": create_transform(224),
    "timm `create_transform(112)`": create_transform(112),
}


class Counted:
    """Counts the pixels that simplejpeg decodes."""

    def __init__(self) -> None:
        self.pixels = 0
        self._decode = simplejpeg.decode_jpeg

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        pixels = self._decode(*args, **kwargs)
        self.pixels += pixels.shape[0] * pixels.shape[1]
        return pixels


def make_stores(folder: Path, count: int) -> dict[str, Path]:
    """Make an image folder of drawn images and its stores, as they are and tiled."""
    random_numbers = np.random.default_rng(0)
    (folder / "images" / "a").mkdir(parents=True)
    for at in range(count):
        small = random_numbers.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        image.save(folder / "images" / "a" / f"{at:04}.jpg", quality=90)
    places = {"as it is": folder / "plain.lmdb", "tiled": folder / "tiled.lmdb"}
    convert(folder / "images", places["as it is"])
    convert(folder / "images", places["tiled"], images=ImageFormat(tile=True))
    return places


def share(place: Path, transform: Callable[[Any], Any], resize: str, counted: Counted) -> float:
    """Return the pixels decoded in one epoch as a share of all pixels in the store."""
    dataset = LMDBDataset(place, transform, resize=resize)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # timm draws from this generator
    counted.pixels = 0
    for at in range(len(dataset)):
        dataset[at]
    return counted.pixels / (len(dataset) * WIDTH * HEIGHT)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200, help="Number of images.")
    images = parser.parse_args().images
    counted = simplejpeg.decode_jpeg = Counted()
    print("| transform | JPEGs as they are | tiled | as they are, `scaled` | tiled, `scaled` |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        places = make_stores(Path(folder), images)
        for name, transform in TRANSFORMS.items():
            shares = [
                share(place, transform, resize, counted) for resize in ("exact", "scaled") for place in places.values()
            ]
            print(f"| {name} | {' | '.join(f'{value:.0%}' for value in shares)} |")


if __name__ == "__main__":
    main()
