"""The documented augmentation changes images as its operations are named, whatever batch they are in."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dbloader import LMDBDataset, Record, create_loader, write_store
from dbloader.device import Normalize, Preparation
from dbloader.sampling.rng import SampleRNG
from tests.support.images import encoded
from tests.support.jpegs import draw
from tests.support.samples import same

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.fixture(scope="module")
def recipe() -> Any:
    specification = importlib.util.spec_from_file_location("recipe", PAGE.parent / "examples" / "trivial_augment.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def noise(count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, 3, 20, 30), np.uint8))


def test_augmentation_of_an_image_is_independent_of_its_batch(recipe: Any) -> None:
    images, rng = noise(1).expand(60, -1, -1, -1), SampleRNG(0, 1, np.arange(60))
    result = recipe.trivial_augment(images, rng)
    assert (result.dtype, result.shape) == (torch.uint8, images.shape)
    alone = recipe.trivial_augment(images[:1], SampleRNG(0, 1, [17]))
    assert torch.equal(alone[0], result[17])
    kinds = {image.numpy().tobytes() for image in result}
    assert len(kinds) > 40, "operations and strengths must differ"
    assert images[0].numpy().tobytes() in kinds, "identity must be one of the operations"
    with pytest.raises(ValueError, match="needs a loader of dbloader"):
        recipe.trivial_augment(images, None)


def test_each_operation_changes_pixels_as_its_name_says(recipe: Any) -> None:
    image = noise(1).float()
    one, zero, plus = torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0])
    for operation in recipe.OPERATIONS:
        if operation not in (recipe.autocontrast, recipe.solarize):
            assert torch.equal(operation(image, zero, plus).round(), image), operation
    moved = recipe.translate_x(image, torch.tensor([5 / 32]), plus)
    assert torch.equal(moved[..., :-5], image[..., 5:])
    assert not moved[..., -5:].any()
    assert torch.equal(recipe.translate_y(image, torch.tensor([4 / 32]), -plus)[:, :, 4:], image[:, :, :-4])
    turned = recipe.rotate(image[..., :20], torch.tensor([90 / 135]), plus)
    assert torch.equal(turned, image[..., :20].rot90(1, (2, 3)))
    assert torch.equal(recipe.solarize(image, one, plus), 255 - image)
    assert torch.equal(recipe.posterize(image, one, plus) % 64, torch.zeros_like(image))
    assert recipe.color(image, one, -plus).std(1).max() < 2, "the image must be nearly gray"
    stretched = recipe.autocontrast(image / 2 + 30, one, plus)
    assert (stretched.min().item(), stretched.max().item()) == (0, 255)


@pytest.mark.slow
def test_recipe_gives_the_same_batches_with_any_workers(recipe: Any, tmp_path: Path) -> None:
    place = tmp_path / "some.lmdb"
    write_store((Record(str(n), n % 3, encoded(draw(40, 30, seed=n), "PNG")) for n in range(12)), place)
    preparation = Preparation(recipe.trivial_augment, Normalize((0.5,) * 3, (0.25,) * 3), recipe.Mixup(3))
    options: dict[str, Any] = {"batch_size": 4, "input_size": 16, "is_training": True, "device": "cpu"}
    options |= {"normalize": None, "preparation": preparation}
    epochs = []
    for workers in (0, 2):
        with create_loader(LMDBDataset(place), num_workers=workers, **options) as loader:
            epochs.append(list(loader))
    assert same(epochs[0], epochs[1])
    images, targets = epochs[0][0]
    assert images.dtype is torch.float32
    assert torch.allclose(targets.sum(1), torch.ones(4))
    assert torch.isfinite(cross_entropy(images.mean((2, 3)), targets))
