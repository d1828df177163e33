"""The parts of a fused transform that need no torchvision. tests/torchvision/test_fusing.py tests the rest."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dbloader import LMDBDataset, Record, create_loader, write_store
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop
from dbloader.errors import OptionError
from dbloader.ext.fusing.head import Head
from dbloader.ext.fusing.middle import Middle
from dbloader.ext.fusing.tail import ToFloat
from tests.support import jpegs
from tests.support.tensors import pixels

PHOTO = jpegs.draw(300, 200, seed=1)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_head_resizes_as_the_option_resize_says(interpolation: str) -> None:
    center = ResizeCenterCrop(48, resize=60, interpolation=interpolation)
    expected = PHOTO.resize((90, 60), Image.Resampling[interpolation.upper()]).crop((21, 6, 69, 54))
    exact, fast = (Head(center, 0, resize)(PHOTO, [0.5]).permute(1, 2, 0).numpy() for resize in ("exact", None))
    assert np.array_equal(exact, np.asarray(expected))
    assert 0 < np.abs(fast.astype(int) - exact).max() <= 2


def test_scaled_head_decodes_at_a_smaller_size() -> None:
    center = ResizeCenterCrop(48, resize=50)
    crop = center.choose_crop((), 300, 200)
    factors = [Head(center, 0, resize).reduction(crop) for resize in ("scaled", "fast", None)]
    assert factors == [4, 1, 1]
    lanczos = ResizeCenterCrop(48, resize=50, interpolation="lanczos")  # of Pillow
    assert Head(lanczos, 0, "scaled").reduction(lanczos.choose_crop((), 300, 200)) == 1


def test_last_random_number_mirrors_the_crop() -> None:
    crops = RandomResizedCrop(32, flip=0)
    numbers = np.random.default_rng(0).random(crops.draws)
    plain, mirrored = (Head(crops, 0.3, None)(PHOTO, [*numbers, last]) for last in (0.3, 0.29))
    assert torch.equal(plain, crops(PHOTO, numbers))
    assert torch.equal(mirrored, plain.flip(2))


@pytest.mark.parametrize("divides", [True, False])
def test_floats_have_the_bits_of_single_operations(divides: bool) -> None:
    images = pixels(5, height=300, width=301)
    module = ToFloat(divides=divides, dtype=None)
    module.normalized.append(([0.5, 0.4, 0.3], [0.25]))
    expected = images.float().div(255) if divides else images.float().mul(1 / 255)
    expected = (expected - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / 0.25
    assert torch.equal(module(images), expected)
    with pytest.raises(OptionError, match=r"should make uint8 images, got torch.float32: pass fuse=False"):
        module(images.float())


def draw(_: Any) -> torch.Tensor:
    return torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()], dtype=torch.float64)


def test_steps_draw_the_same_numbers_in_any_number_of_worker_processes(tmp_path: Path) -> None:
    write_store([Record(str(number), 0, jpegs.encode(PHOTO)) for number in range(8)], tmp_path / "store.lmdb")
    dataset = LMDBDataset(tmp_path / "store.lmdb", Middle([draw], "PIL", to_tensor=False))
    options: Any = {"batch_size": 2, "normalize": None, "worker_type": "processes", "device": None}
    found = []
    for num_workers in (1, 2):
        with create_loader(dataset, num_workers=num_workers, **options) as loader:
            found.append(torch.cat([numbers for numbers, _ in loader]))
    assert torch.equal(*found)
    assert len(set(found[0].flatten().tolist())) == found[0].numel()


def spend(image: Image.Image) -> torch.Tensor:
    ends = time.perf_counter() + 0.01
    while time.perf_counter() < ends:
        pass
    return torch.zeros(3)


@pytest.mark.parametrize("worker_type", ["threads", "processes"])
def test_stats_contain_the_time_of_steps_that_are_not_fused(tmp_path: Path, worker_type: Any) -> None:
    write_store([Record(str(number), 0, jpegs.encode(PHOTO)) for number in range(8)], tmp_path / "store.lmdb")
    options: Any = {"batch_size": 4, "normalize": None, "worker_type": worker_type, "device": None, "num_workers": 1}
    works: list[Any] = []
    kinds: tuple[dict[str, Any], ...] = ({"transform": Middle([spend], "PIL")}, {"decode": ResizeCenterCrop(32)})
    for functions in kinds:
        with create_loader(LMDBDataset(tmp_path / "store.lmdb", **functions), **options) as loader:
            assert len([*loader]) == 2
            works.append(loader.stats().work)
    assert works[0].steps >= 0.08
    assert works[0].decode > 0
    assert works[1].steps == 0


def test_steps_outside_worker_processes_leave_the_global_generators_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    assert Middle([draw], "PIL", to_tensor=False)(PHOTO, seed=7)[0] == expected


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_images_become_uint8_tensors(mode: str) -> None:
    image = PHOTO.convert(mode)
    found = Middle([], "PIL", to_tensor=True)(image)
    assert np.array_equal(found.permute(1, 2, 0).squeeze(2).numpy(), np.asarray(image))
    with pytest.raises(OptionError, match="the steps before ToTensor should make 8-bit images, got F: pass fuse=False"):
        Middle([], "PIL", to_tensor=True)(image.convert("F"))
