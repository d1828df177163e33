"""Augment batches on the device with torchvision: TrivialAugment or RandAugment, then MixUp or CutMix.

    python torchvision_augment.py train.lmdb --classes 10

torchvision draws one operation for a whole batch, so `each` passes the images one by one. The random numbers come
from torch's global generator, so a resumed run gets the same crops, but not the same augmentation (docs/recipes.md).
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms import v2

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import RandomResizedCrop
from dbloader.device import Normalize, Preparation

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def each(transform: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda images: torch.stack([transform(image) for image in images])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--recipe", choices=["trivial", "rand"], default="trivial")
    parser.add_argument("--batches", type=int, default=3)
    options = parser.parse_args()
    augment = v2.TrivialAugmentWide() if options.recipe == "trivial" else v2.RandAugment()
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=options.classes), v2.CutMix(num_classes=options.classes)])
    loader = create_loader(
        LMDBDataset(options.place),
        batch_size=16,
        is_training=True,
        transform=RandomResizedCrop(176, interpolation="bicubic"),
        normalize=None,  # the augmentation needs uint8 images; the preparation normalizes after it
        preparation=Preparation(each(augment), Normalize(MEAN, STD), mix),
    )
    for _, (images, targets) in zip(range(options.batches), loader, strict=False):
        print(tuple(images.shape), images.dtype, tuple(targets.shape), f"{targets.sum(1).mean():.3f}")


if __name__ == "__main__":
    main()
