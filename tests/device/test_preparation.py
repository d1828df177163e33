"""Preparation changes the images of a batch and keeps the batch's type."""

from __future__ import annotations

import pickle
import types
from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from dbloader.device import Normalize, Preparation
from dbloader.sampling.rng import SampleRNG
from tests.support.preparations import Noise
from tests.support.tensors import MEAN, STD, pixels


def rng_of(positions: Any, stream: int = 0) -> SampleRNG:
    return SampleRNG(1, 2, positions, stream)


class LikeTorchvisions(torch.nn.Module):
    """Like torchvision's v2 transforms: takes any number of inputs, and returns the same number."""

    def forward(self, *inputs: Any) -> Any:
        mixed = (inputs[0] * 2, *(torch.nn.functional.one_hot(labels, 10).float() for labels in inputs[1:]))
        return mixed if len(inputs) > 1 else mixed[0]


class LikeTimms:
    """Like timm's Mixup: takes ``x`` and ``target``, and changes the images in place."""

    def __call__(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mul_(2), torch.nn.functional.one_hot(target, 10).float()


class LikeKornias(torch.nn.Module):
    """Like kornia's RandomMixUpV2: ``data_keys`` names the arguments. For two arguments, it returns a list."""

    def __init__(self, data_keys: list[str]) -> None:
        super().__init__()
        self.data_keys = data_keys

    def forward(self, *input: torch.Tensor, params: Any = None, data_keys: Any = None) -> Any:  # noqa: A002
        mixed = [input[0] * 2, *(torch.nn.functional.one_hot(labels, 10).float() for labels in input[1:])]
        return mixed if len(input) > 1 else mixed[0]


@pytest.mark.parametrize("mixer", [LikeTorchvisions(), LikeTimms(), LikeKornias(["input", "class"])])
def test_mixers_of_other_libraries_get_images_and_labels(mixer: Any) -> None:
    given, labels = torch.ones(2, 3, 4, 4), torch.tensor([3, 9])
    for prepared in (Preparation(mixer), Preparation(Normalize((0, 0, 0), (1, 1, 1)), mixer)):
        images, targets = prepared((given, labels))
        assert targets.shape == (2, 10)
        assert torch.equal(targets.argmax(1), labels)
        assert not torch.equal(images, given)
        assert (given == 1).all()
        assert prepared({"image": given, "label": labels})["label"].shape == (2, 10)


def test_transforms_without_targets_get_images_only() -> None:
    images = torch.ones(2, 3, 4, 4)
    assert (Preparation(LikeTorchvisions())(images) == 2).all()
    assert (Preparation(LikeTorchvisions())((images,))[0] == 2).all()
    labels = torch.tensor([3, 9])
    doubled, unchanged = Preparation(LikeKornias(["input"]))((images, labels))
    assert (doubled == 2).all()
    assert unchanged is labels
    for mixer in (LikeTimms(), LikeKornias(["input", "class"])):
        for batch in (images, (images,), {"image": images, "name": "a.jpg"}):
            with pytest.raises(TypeError, match=r"Like.* takes the targets of a batch, got a batch without targets"):
                Preparation(mixer)(batch)


class Pair(NamedTuple):
    image: Any
    label: Any


Untyped = namedtuple("Untyped", ["image", "label", "name"])


def doubled(images: torch.Tensor) -> torch.Tensor:
    return images * 2


def with_targets(images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return images + 1, targets + 1


class Recorder(torch.nn.Module):
    """Records each rng."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, images: torch.Tensor, rng: SampleRNG | None = None) -> torch.Tensor:
        self.seen.append(rng)
        return images


@pytest.mark.parametrize(
    "make",
    [
        lambda images, targets: (images, targets),
        lambda images, targets: [images, targets],
        lambda images, targets: (images, targets, ["a.jpg"]),
        lambda images, targets: Pair(images, targets),
        lambda images, targets: Untyped(images, targets, "a.jpg"),
        lambda images, targets: {"image": images, "label": targets, "name": "a.jpg"},
        lambda images, targets: {"name": ["a.jpg"], "label": targets, "image": images},
        lambda images, targets: types.MappingProxyType({"image": images, "label": targets}),
    ],
)
def test_preparation_changes_images_only_and_keeps_the_batch_type(make: Any) -> None:
    images, targets = torch.ones(2, 1, 1, 1), torch.tensor([3, 4])
    batch = make(images, targets)
    result = Preparation(doubled, torch.neg)(batch)
    assert type(result) is type(batch)
    assert repr(result) == repr(make(-2 * images, targets))
    assert repr(Preparation(doubled, with_targets)(batch)) == repr(make(2 * images + 1, targets + 1))
    assert repr(batch) == repr(make(torch.ones(2, 1, 1, 1), torch.tensor([3, 4])))


def test_names_of_image_and_label_can_be_set() -> None:
    prepared = Preparation(with_targets, image="pixel_values", label="labels")
    result = prepared({"pixel_values": torch.zeros(1), "labels": torch.ones(1), "image": "a.jpg"})
    assert (result["pixel_values"].item(), result["labels"].item(), result["image"]) == (1, 2, "a.jpg")


def test_each_module_that_draws_gets_its_own_random_stream() -> None:
    first, second = Recorder(), Recorder()
    prepared = Preparation(first, doubled, second)
    given = rng_of(range(2))
    prepared((torch.ones(2, 1, 1, 1), torch.zeros(2)), rng=given)
    prepared(torch.ones(2, 1, 1, 1))
    seen = [recorder.seen[0] for recorder in (first, second)]
    assert [each.stream for each in seen] == [0, 1]
    assert [(each.seed, each.epoch, each.positions.tolist()) for each in seen] == [(1, 2, [0, 1])] * 2
    assert [recorder.seen[1] for recorder in (first, second)] == [None] * 2
    prepared(torch.ones(2, 1, 1, 1), rng=rng_of(range(2), stream=5))
    assert [recorder.seen[2].stream for recorder in (first, second)] == [5, 6]


def test_compiled_module_gets_the_rng() -> None:
    class Optimized(torch.nn.Module):  # like a compiled module, which takes any arguments and keeps the original module
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self._orig_mod = module

        def forward(self, *args: Any, **options: Any) -> Any:
            return self._orig_mod(*args, **options)

    recorder = Recorder()
    Preparation(Optimized(recorder))(torch.ones(2, 1, 1, 1), rng=rng_of(range(2)))
    assert recorder.seen[0].stream == 0


def test_pickled_modules_prepare_equal_batches() -> None:
    prepared = Preparation(Normalize(MEAN, STD), Noise(), doubled)
    copied = pickle.loads(pickle.dumps(prepared))  # noqa: S301
    assert prepared.state_dict() == {}
    assert list(prepared.parameters()) == list(prepared.buffers()) == []
    assert repr(copied) == repr(prepared)
    assert torch.equal(copied(pixels(), rng=rng_of(range(4))), prepared(pixels(), rng=rng_of(range(4))))


def test_batch_without_images_is_refused() -> None:
    with pytest.raises(
        TypeError, match="a preparation must be a module or another callable that takes the images, got 5"
    ):
        Preparation(5)  # type: ignore[arg-type]
    for batch in ("a.jpg", (), None, np.zeros(2)):
        with pytest.raises(
            TypeError, match="a batch must be a tensor of images, or a tuple, list or dict with such a tensor, got"
        ):
            Preparation(doubled)(batch)
    with pytest.raises(KeyError, match="the batch has no 'image', got img, label: name the images with Preparation"):
        Preparation(doubled)({"img": torch.ones(1), "label": 1})

    def forgetful(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return images

    with pytest.raises(TypeError, match=r"takes targets and so must return \(images, targets\), got Tensor"):
        Preparation(forgetful)((torch.ones(2), torch.ones(2)))


def test_module_whose_target_argument_has_a_default_gets_no_labels() -> None:
    def scale(images: torch.Tensor, target: float = 2.0) -> torch.Tensor:
        return images * target

    def mix(images: torch.Tensor, alpha: float = 3.0, *, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images * alpha, target + 1

    images, labels = torch.ones(2, 3, 4, 4), torch.tensor([3, 9])
    assert torch.equal(Preparation(scale)((images, labels))[0], images * 2)
    mixed, added = Preparation(mix)((images, labels))
    assert torch.equal(mixed, images * 3)
    assert added.tolist() == [4, 10]


def test_each_of_several_crops_draws_its_own_random_numbers() -> None:
    recorder, after = Recorder(), Recorder()
    crops = [torch.ones(2, 1, side, side) for side in (1, 2, 3)]
    for batch in ((crops, torch.zeros(2)), {"image": crops, "label": torch.zeros(2)}):
        result: Any = Preparation(doubled, recorder, after)(batch, rng=rng_of(range(2)))
        images = result["image"] if isinstance(result, dict) else result[0]
        assert [(tuple(crop.shape), crop.unique().item()) for crop in images] == [
            ((2, 1, 1, 1), 2), ((2, 1, 2, 2), 2), ((2, 1, 3, 3), 2)
        ]  # fmt: skip
    assert [each.stream for each in recorder.seen] == [0, 1, 2] * 2
    assert [each.stream for each in after.seen] == [3, 4, 5] * 2
    Preparation(recorder)((crops, torch.zeros(2)))
    assert recorder.seen[-3:] == [None] * 3
    with pytest.raises(TypeError, match=r"with_targets.* takes targets, which a batch of several crops cannot share"):
        Preparation(with_targets)((crops, torch.zeros(2)))
