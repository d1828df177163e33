"""timm's loader and models with a store, and create_loader with timm's transforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import ResizeCenterCrop
from dbloader.device import Normalize

REASON = "timm is not installed: scripts/frameworks torchvision"
timm = pytest.importorskip("timm", reason=REASON)
timm_data = pytest.importorskip("timm.data", reason=REASON)
CPU: dict[str, Any] = {"device": torch.device("cpu"), "persistent_workers": False}  # options of timm's create_loader


# timm never closes its files
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_names_images_and_classes_equal_timm_dataset(folder: Path, place: Path) -> None:
    theirs, ours = timm_data.ImageDataset(folder), LMDBDataset(place)
    assert sorted(ours.filenames()) == sorted(theirs.filenames())
    assert sorted(ours.filenames(basename=True)) == sorted(theirs.filenames(basename=True))
    classes = list(theirs.reader.class_to_idx)
    for index in range(len(theirs)):
        image, label = theirs[index]
        ours_image, ours_label = ours[ours.find(theirs.filename(index))]
        assert ours_image.tobytes() == image.tobytes()
        assert ours.classes[ours_label] == classes[label]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_images_equal_timm_loader(place: Path, interpolation: str) -> None:
    model = timm.create_model("test_resnet", num_classes=3)
    config = timm_data.resolve_data_config({"img_size": 32, "interpolation": interpolation}, model=model)
    theirs = timm_data.create_loader(LMDBDataset(place), num_workers=0, batch_size=12, **CPU, **config)
    center = ResizeCenterCrop(32, config["crop_pct"], interpolation=interpolation)
    normalize = Normalize(config["mean"], config["std"])
    store = LMDBDataset(place)
    ours = create_loader(store, batch_size=12, transform=center, normalize=normalize, device="cpu", num_workers=0)
    (images, labels), (their_images, their_labels) = next(iter(ours)), next(iter(theirs))
    assert torch.equal(labels, their_labels)
    levels = (images - their_images).abs() * 255 * np.array(config["std"]).mean()
    assert levels.mean() < 0.5  # filters of torch and Pillow differ by one level in some pixels
    positional = create_loader(store, (3, 32, 32), 12, device="cpu")
    assert next(iter(positional))[0].shape == images.shape


def test_timm_loader_trains_on_a_store(place: Path) -> None:
    for use_prefetcher in (True, False):
        options = {"is_training": True, "re_prob": 0.25, "auto_augment": "rand-m9-mstd0.5", **CPU}
        loader = timm_data.create_loader(
            LMDBDataset(place), (3, 32, 32), 4, num_workers=2, use_prefetcher=use_prefetcher, **options
        )
        batches = list(loader)
        assert [images.shape for images, _ in batches] == [(4, 3, 32, 32)] * 3
        assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == [0] * 4 + [1] * 4 + [2] * 4


def test_timm_transform_in_create_loader_equals_timm_loader(place: Path) -> None:
    config = {"crop_mode": "squash", "interpolation": "bicubic"}
    transform = timm_data.create_transform((3, 32, 32), use_prefetcher=True, **config)
    dataset = LMDBDataset(place, resize="exact")
    loader = create_loader(dataset, batch_size=12, transform=transform, device="cpu", num_workers=0)
    theirs = timm_data.create_loader(LMDBDataset(place), (3, 32, 32), 12, num_workers=0, **CPU, **config)
    assert torch.allclose(next(iter(loader))[0], next(iter(theirs))[0], atol=1e-5)
