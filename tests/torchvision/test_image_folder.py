"""LMDBDataset equals torchvision's ImageFolder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dbloader import LMDBDataset

datasets = pytest.importorskip(
    "torchvision.datasets", reason="torchvision is not installed: scripts/frameworks torchvision"
)


def to_array(image: Any) -> Any:
    return np.asarray(image).transpose(2, 0, 1).copy()


def samples_of(dataset: Any) -> list[Any]:
    return [dataset[index] for index in range(len(dataset))]


def test_samples_classes_and_targets_equal_those_of_imagefolder(folder: Path, place: Path) -> None:
    theirs, ours = datasets.ImageFolder(folder), LMDBDataset(place)
    assert len(ours) == len(theirs)
    assert ours.classes == theirs.classes == ["10", "2", "cats"]
    assert ours.class_to_idx == theirs.class_to_idx
    assert ours.targets.tolist() == theirs.targets
    assert [(str(folder / name), label) for name, label in ours.samples] == theirs.samples
    assert [(str(folder / name), label) for name, label in ours.imgs] == theirs.imgs
    for (image, label), (their_image, their_label) in zip(samples_of(ours), samples_of(theirs), strict=True):
        assert (image.mode, image.size, type(label)) == (their_image.mode, their_image.size, type(their_label))
        assert image.tobytes() == their_image.tobytes()
        assert label == their_label


def test_subclass_that_loads_by_path_works_with_lmdb_dataset_as_base(folder: Path, place: Path) -> None:
    def pairs(base: Any) -> Any:
        class Pairs(base):  # type: ignore[misc]
            def __getitem__(self, index: int) -> Any:
                path, target = self.samples[index]
                image = self.loader(path)
                return image, image.transpose(0), target

        return Pairs

    theirs, ours = pairs(datasets.ImageFolder)(folder), pairs(LMDBDataset)(place)
    for index in range(len(theirs)):
        images, their_images = ours[index], theirs[index]
        assert [image.tobytes() for image in images[:2]] == [image.tobytes() for image in their_images[:2]]
        assert images[2] == their_images[2]


class Vision(LMDBDataset, datasets.VisionDataset):  # type: ignore[misc, name-defined]
    """A dataset for code that checks for VisionDataset."""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_subclass_can_be_a_vision_dataset(folder: Path, place: Path, num_workers: int) -> None:
    ours = Vision(place, to_array)
    assert isinstance(ours, datasets.VisionDataset)
    assert not isinstance(LMDBDataset(place), datasets.VisionDataset)
    theirs = datasets.ImageFolder(folder, to_array)
    found = [image for (image,), _ in DataLoader(ours, num_workers=num_workers)]
    assert all(np.array_equal(image, their_image) for image, (their_image, _) in zip(found, theirs, strict=True))
