"""Transforms and mixers of torchvision, timm, albumentations and kornia work with a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, create_loader

REASON = "torchvision is not installed: scripts/frameworks torchvision"
datasets = pytest.importorskip("torchvision.datasets", reason=REASON)
v1 = pytest.importorskip("torchvision.transforms", reason=REASON)
v2 = pytest.importorskip("torchvision.transforms.v2", reason=REASON)
timm_data = pytest.importorskip("timm.data", reason=REASON)
albumentations = pytest.importorskip("albumentations", reason=REASON)
kornia = pytest.importorskip("kornia.augmentation", reason=REASON)


class Album:
    """A transform of albumentations, which takes and returns arrays by name."""

    def __init__(self) -> None:
        steps = [albumentations.RandomCrop(32, 32), albumentations.HorizontalFlip(), albumentations.ColorJitter()]
        self.transform = albumentations.Compose(steps, seed=7)

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(self.transform(image=np.asarray(image))["image"].copy()).permute(2, 0, 1)


TRANSFORMS = {
    "torchvision v1": lambda: v1.Compose(
        [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4, 0.4, 0.4), v1.ToTensor()]
    ),
    "torchvision v2": lambda: v2.Compose(
        [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    ),
    "timm, training": lambda: timm_data.create_transform(32, is_training=True, auto_augment="rand-m9-mstd0.5"),
    "albumentations": Album,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_gives_equal_results_on_a_store_and_imagefolder(folder: Path, place: Path, name: str) -> None:
    batches = []
    for dataset in (datasets.ImageFolder(folder, TRANSFORMS[name]()), LMDBDataset(place, TRANSFORMS[name]())):
        loader = DataLoader(dataset, 4, num_workers=2, generator=torch.Generator().manual_seed(3))
        batches.append([images for images, _ in loader])
    assert all(torch.equal(one, other) for one, other in zip(*batches, strict=True))


MIXERS = {
    "torchvision, one of both": lambda: v2.RandomChoice([v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)]),
    "timm": lambda: timm_data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=3),
}


@pytest.mark.parametrize("name", MIXERS)
def test_mixer_as_preparation_mixes_images_and_labels(place: Path, name: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "input_size": 32, "num_workers": 0, "device": "cpu"}
    torch.manual_seed(0)
    np.random.seed(0)  # timm draws from NumPy's generator
    images, labels = next(iter(create_loader(LMDBDataset(place), preparation=MIXERS[name](), **options)))
    plain, targets = next(iter(create_loader(LMDBDataset(place), **options)))
    assert images.shape == plain.shape == (4, 3, 32, 32)
    assert labels.shape == (4, 3)
    assert torch.allclose(labels.sum(1), torch.ones(4))
    assert not torch.equal(images, plain)
    assert targets.dtype == torch.int64


def test_kornia_mixup_mixes_labels(place: Path) -> None:
    mix = kornia.RandomMixUpV2(p=1.0, data_keys=["input", "class"])
    options: dict[str, Any] = {"batch_size": 12, "input_size": 32, "num_workers": 0, "device": "cpu"}
    images, labels = next(iter(create_loader(LMDBDataset(place), preparation=mix, **options)))
    plain, targets = next(iter(create_loader(LMDBDataset(place), **options)))
    assert torch.equal(labels[:, 0].long(), targets)  # the label, the mixed-in label, and the mixed-in label's share
    share = labels[:, 2].reshape(-1, 1, 1, 1)
    order = mix._params["mixup_pairs"].tolist()
    assert torch.equal(labels[:, 1].long(), targets[order])
    assert torch.allclose(images, plain * (1 - share) + plain[order] * share, atol=1e-5)
