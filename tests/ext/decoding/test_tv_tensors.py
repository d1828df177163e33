"""torchvision's v2 transforms change masks and boxes with the image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import as_tv_tensors
from tests.datasets.test_fields import FILES, LENGTH, boxes_of, extent, make_fields, mask_of, size_of

has_torchvision = importlib.util.find_spec("torchvision") is not None
needs_torchvision = pytest.mark.skipif(not has_torchvision, reason="torchvision is not installed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_fields(tmp_path_factory.mktemp("stores") / "fields.lmdb")


@pytest.mark.skipif(has_torchvision, reason="torchvision is installed")
def test_error_names_missing_torchvision() -> None:
    with pytest.raises(ImportError, match="torchvision"):
        as_tv_tensors({"image": Image.new("RGB", (8, 8))})


@needs_torchvision
def test_masks_and_boxes_become_tv_tensors(place: Path) -> None:
    from torchvision import tv_tensors

    fields = ("image", "label", *FILES, "boxes", "box_labels", "iscrowd", "name")
    with LMDBDataset(place, transforms=as_tv_tensors, fields=fields) as dataset:
        sample = dataset[3]
    assert [type(sample[name]) for name in ("mask", "depth", "disparity", "boxes")] == (
        [tv_tensors.Mask] * 3 + [tv_tensors.BoundingBoxes]
    )
    assert [sample[name].dtype for name in ("mask", "depth", "disparity")] == [torch.uint8, torch.int32, torch.float32]
    assert np.array_equal(sample["mask"], np.asarray(mask_of(3)))
    assert isinstance(sample["image"], Image.Image)
    assert isinstance(sample["large"], Image.Image)
    assert np.array_equal(sample["boxes"], boxes_of(3))
    assert sample["boxes"].canvas_size == size_of(3)[::-1]
    assert sample["box_labels"].tolist() == [1, 2, 3, 4]
    assert (sample["label"], sample["iscrowd"], sample["name"]) == (0, [1, 0, 1, 0], "3.jpg")


@needs_torchvision
@pytest.mark.parametrize("count", [0, 2])
def test_lists_of_boxes_become_bounding_boxes(count: int) -> None:
    boxes = as_tv_tensors({"image": Image.new("RGB", (8, 8)), "boxes": [[1, 2, 3, 4]] * count})["boxes"]
    assert (type(boxes).__name__, boxes.shape) == ("BoundingBoxes", (count, 4))


@needs_torchvision
def test_v2_transforms_image_mask_and_boxes_together(place: Path) -> None:
    from torchvision.transforms import v2

    def labels(sample: dict[str, Any]) -> Any:
        return sample["box_labels"]

    transforms = v2.Compose(
        [
            as_tv_tensors,
            v2.RandomResizedCrop(200, scale=(0.1, 0.6)),
            v2.RandomHorizontalFlip(),
            v2.ClampBoundingBoxes(),
            v2.SanitizeBoundingBoxes(labels_getter=labels),
            v2.ToImage(),
        ]
    )
    torch.manual_seed(0)
    with LMDBDataset(place, transforms=transforms, fields=("image", "mask", "boxes", "box_labels")) as dataset:
        counts = set()
        for _ in range(4):
            for sample in dataset[:]:
                assert (sample["image"].shape, sample["mask"].shape) == ((3, 200, 200), (200, 200))
                counts.add(len(sample["boxes"]))
                for box, label in zip(sample["boxes"].numpy(), sample["box_labels"].tolist(), strict=True):
                    assert np.abs(box - extent(sample["mask"], label)).max() <= 1.5
        assert min(counts) < 3
        loader = create_loader(dataset, batch_size=LENGTH, normalize=None, device=None, collate_fn=list, num_workers=2)
        (batch,) = loader
        assert len(batch) == LENGTH
        loader.close()
