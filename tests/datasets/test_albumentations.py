"""albumentations transforms images, masks and boxes with reproducible random numbers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from dbloader import LMDBDataset, create_loader
from dbloader.errors import OptionError
from tests.support.samples import same
from tests.support.stores import store_samples

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # otherwise albumentations asks a server for its newest version
import albumentations as A  # noqa: N812

LENGTH = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of images whose masks are their red channels."""
    place = tmp_path_factory.mktemp("store") / "masks.lmdb"

    def samples() -> Iterator[dict[str, Any]]:
        for label in range(LENGTH):
            pixels = np.random.default_rng(label).integers(0, 256, (40, 48, 3), dtype=np.uint8)
            yield {"image": Image.fromarray(pixels), "mask": Image.fromarray(pixels[:, :, 0]), "label": label}

    store_samples(samples(), place, file_fields=("mask",))
    return place


def crop() -> Any:
    return A.Compose([A.RandomCrop(16, 16), A.HorizontalFlip(), A.RandomBrightnessContrast(p=1), A.ToTensorV2()])


def both() -> Any:
    return A.Compose([A.RandomCrop(16, 16), A.HorizontalFlip(), A.RandomRotate90()])


def test_composition_transforms_images(place: Path) -> None:
    dataset = LMDBDataset(place, transform=A.Compose([A.CenterCrop(8, 8)]))
    image, label = pickle.loads(pickle.dumps(dataset))[3]  # noqa: S301 # as a worker gets it
    whole, _ = LMDBDataset(place)[3]
    assert label == 3
    assert np.array_equal(image, np.asarray(whole)[16:24, 20:28])
    assert np.array_equal(LMDBDataset(place, transform=A.CenterCrop(8, 8))[3][0], image)  # a transform without Compose


def test_image_and_mask_are_transformed_together(place: Path) -> None:
    dataset = LMDBDataset(place, transforms=both(), fields=("image", "mask", "label"))
    for number in range(LENGTH):
        sample = dataset[number]
        assert sample["image"].shape == (16, 16, 3)
        assert np.array_equal(sample["image"][:, :, 0], sample["mask"])
        assert sample["label"] == number


def test_boxes_are_transformed_with_their_image(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 8, 4]], np.float32)
    sample = {"image": Image.new("RGB", (32, 16)), "boxes": boxes, "box_labels": np.array([3])}
    store_samples([sample], tmp_path / "boxes.lmdb")
    parameters = A.BboxParams(format="pascal_voc", label_fields=["box_labels"])
    fields = {"image": "image", "bboxes": "boxes", "box_labels": "box_labels"}
    flip = A.Compose([A.HorizontalFlip(p=1)], bbox_params=parameters)
    found = LMDBDataset(tmp_path / "boxes.lmdb", transforms=flip, fields=fields)[0]
    assert found["bboxes"].tolist() == [[24, 0, 32, 4]]
    assert found["box_labels"].tolist() == [3]


def test_transform_of_only_the_image_is_refused_for_samples_with_a_mask(place: Path) -> None:
    with pytest.raises(OptionError, match="as transforms=, which gets the whole sample"):
        LMDBDataset(place, transform=both(), fields=("image", "mask"))[0]


def batches(dataset: Any, epochs: int = 1, **options: Any) -> list[torch.Tensor]:
    common: dict[str, Any] = {"is_training": True, "batch_size": 4, "device": None, "normalize": None}
    with create_loader(dataset, **common, **options) as loader:
        return [images for _ in range(epochs) for images, _ in loader]


def test_random_numbers_depend_only_on_seed_epoch_and_position(place: Path) -> None:
    dataset = LMDBDataset(place, transform=crop())
    expected = batches(dataset, 2, num_workers=0)
    assert not torch.equal(
        torch.cat(expected[:3]).sort(0)[0], torch.cat(expected[3:]).sort(0)[0]
    )  # each epoch draws different crops
    threads = batches(dataset, 2, num_workers=3, worker_type="threads")
    processes = batches(dataset, 2, num_workers=2, worker_type="processes")
    assert same(threads, expected)
    assert same(processes, expected)
    assert not same(batches(dataset, 2, num_workers=0, seed=1), expected)


def test_dataset_of_another_library_gets_the_same_random_numbers(place: Path) -> None:
    class Pairs(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return LENGTH

        def __getitem__(self, index: int) -> Any:
            return LMDBDataset(place)[index]

    expected = batches(LMDBDataset(place), num_workers=0, transform=crop())
    assert same(batches(Pairs(), num_workers=0, transform=crop()), expected)
    assert same(batches(Subset(LMDBDataset(place), range(LENGTH)), num_workers=0, transform=crop()), expected)


def test_forked_workers_of_a_plain_dataloader_draw_different_numbers(place: Path) -> None:
    """The transform's own generator would draw the same first crop in each worker."""
    torch.manual_seed(0)
    dataset = Subset(LMDBDataset(place, transform=A.Compose([A.RandomCrop(16, 16)])), [0, 0])
    first, second = DataLoader(dataset, 1, num_workers=2, multiprocessing_context="fork")
    assert not torch.equal(first[0], second[0])
