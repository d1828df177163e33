"""Transforms that create_loader fuses give what torchvision and timm give."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from dbloader import Collate, ImageFormat, LMDBDataset, convert, create_loader, mix
from dbloader.decoding.render import Crop
from dbloader.device import Normalize
from dbloader.errors import OptionError
from dbloader.ext.fusing.head import Head, read_head
from dbloader.ext.fusing.middle import Middle
from tests.support import jpegs

REASON = "torchvision is not installed: scripts/frameworks torchvision"
v1 = pytest.importorskip("torchvision.transforms", reason=REASON)
v2 = pytest.importorskip("torchvision.transforms.v2", reason=REASON)
functional = pytest.importorskip("torchvision.transforms.v2.functional", reason=REASON)
timm_data = pytest.importorskip("timm.data", reason=REASON)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOATS = {
    "v1": lambda: [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "v2": lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()],
    "v1, converted": lambda: [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize([0.5], [0.25])],
    "float only": lambda: [v1.ToTensor()],
}
EVALUATIONS = {
    "resize and crop": lambda: [v1.Resize(60), v1.CenterCrop(48)],
    "bicubic": lambda: [v1.Resize(60, v1.InterpolationMode.BICUBIC), v1.CenterCrop((40, 48))],
    "larger than the image": lambda: [v2.Resize(30), v2.CenterCrop(50)],
    "squash": lambda: [v1.Resize((40, 56))],
    "squash and crop": lambda: [v2.Resize((47, 56), v2.InterpolationMode.BICUBIC), v2.CenterCrop(40)],
    "lanczos": lambda: [v1.Resize(60, v1.InterpolationMode.LANCZOS), v1.CenterCrop(48)],
    "squash, nearest": lambda: [v1.Resize((40, 56), v1.InterpolationMode.NEAREST)],
}
OPTIONS: dict[str, Any] = {"batch_size": 4, "device": "cpu", "num_workers": 0}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain and a tiled store of photographs of different sizes."""
    folder = tmp_path_factory.mktemp("fusing")
    for number in range(8):
        place = folder / "images" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        jpegs.draw(100 + 9 * number, 90 + 5 * (number % 3), seed=number).save(place / f"{number}.jpg", quality=90)
    convert(folder / "images", folder / "plain.lmdb")
    convert(folder / "images", folder / "tiled.lmdb", images=ImageFormat(tile=True))
    return {name: folder / f"{name}.lmdb" for name in ("plain", "tiled")}


def images_of(loader: Any) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def unfused(place: Path, transform: Any) -> torch.Tensor:
    return images_of(DataLoader(LMDBDataset(place, transform), 4))


@pytest.mark.parametrize("kind", ["plain", "tiled"])
@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("name", EVALUATIONS)
def test_fused_evaluation_equals_torchvision(stores: dict[str, Path], name: str, floats: str, kind: str) -> None:
    transform = v1.Compose([*EVALUATIONS[name](), *FLOATS[floats]()])
    expected = unfused(stores[kind], transform)
    loader = create_loader(LMDBDataset(stores[kind], transform, resize="exact"), **OPTIONS)
    assert "each sample" not in repr(loader)
    images = images_of(loader)
    assert (images.dtype, images.is_contiguous()) == (torch.float32, True)
    assert torch.equal(images, expected)
    fast = images_of(create_loader(LMDBDataset(stores[kind]), transform=transform, **OPTIONS))
    assert (fast - expected).abs().max() * 255 * min(STD) < 2.01


HEADS = {
    "v1": lambda: [v1.RandomResizedCrop(40), v1.RandomHorizontalFlip()],
    "v2": lambda: [v2.RandomResizedCrop((40, 48), (0.3, 0.9), (0.5, 1.5)), v2.RandomHorizontalFlip(0.2)],
    "v2, bicubic": lambda: [v2.RandomResizedCrop(40, interpolation=v2.InterpolationMode.BICUBIC)],
    "v2, tensors": lambda: [v2.ToImage(), v2.RandomResizedCrop(40), v2.RandomHorizontalFlip()],
    "padded": lambda: [v1.RandomCrop(64, padding=8), v1.RandomHorizontalFlip()],
    "padded, v2": lambda: [v2.RandomCrop(110, (1, 2, 3, 4), pad_if_needed=True)],
}


def crop_with_torchvision(image: Any, crop: Crop, size: tuple[int, int]) -> Any:
    """Return what torchvision makes of an image with the parameters of a crop."""
    mode = v2.InterpolationMode(crop.interpolation.lower())
    box = (crop.top, crop.left, crop.height, crop.width)
    if crop.resized is None:
        image = functional.resized_crop(image, *box, size, mode, True)
    else:  # of RandomCrop, whose window may be outside of the image
        image = functional.crop(image, crop.top + crop.window[0], crop.left + crop.window[1], *size)
    return functional.horizontal_flip(image) if crop.flip else image


@pytest.mark.parametrize("resize", ["exact", "fast", None])
@pytest.mark.parametrize("name", HEADS)
def test_fused_crops_have_the_pixels_of_torchvision(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, resize: str | None
) -> None:
    crops: list[Crop] = []
    choose = Head.choose_crop

    def record(*arguments: Any) -> Crop:
        crops.append(choose(*arguments))
        return crops[-1]

    monkeypatch.setattr(Head, "choose_crop", record)
    steps = HEADS[name]()
    transform = v2.Compose([*steps, v2.PILToTensor()])
    dataset = LMDBDataset(stores["plain"], transform, resize=resize)
    images = images_of(create_loader(dataset, normalize=None, **OPTIONS))
    assert images.dtype is torch.uint8
    plain = LMDBDataset(stores["plain"])
    for index, (found, crop) in enumerate(zip(images, crops, strict=True)):
        image: Any = plain[index][0]
        image = functional.to_image(image) if name == "v2, tensors" else image
        expected = crop_with_torchvision(image, crop, tuple(found.shape[1:]))
        expected = expected if isinstance(expected, torch.Tensor) else functional.pil_to_tensor(expected)
        most = 0 if resize == "exact" or "padded" in name or "tensors" in name else 2
        assert (found.int() - expected.int()).abs().max() <= most


def test_fused_crops_and_flips_are_distributed_as_those_of_torchvision() -> None:
    """Compare the quantiles of 20,000 draws, which differ by at most 1.36 % with a probability of 95 %."""
    count, width, height = 20_000, 500, 375
    random.seed(0)
    torch.manual_seed(0)
    for crop, get in (
        (v1.RandomResizedCrop(224), v1.RandomResizedCrop.get_params),
        (timm_data.transforms.RandomResizedCropAndInterpolation(224), None),
    ):
        get = crop.get_params if get is None else get
        image = torch.empty(3, height, width)
        theirs = np.array([get(image, crop.scale, crop.ratio) for _ in range(count)])
        head, _ = read_head([crop, v1.RandomHorizontalFlip(0.3)])
        assert head is not None
        numbers = np.random.default_rng(1).random((count, head.draws))
        ours = [head.choose_crop(row, width, height) for row in numbers]
        for column, name in enumerate(("top", "left", "height", "width")):
            values = np.array([getattr(crop, name) for crop in ours])
            both = np.arange(0, width + 1)
            shares = [np.searchsorted(np.sort(each), both, "right") / count for each in (values, theirs[:, column])]
            assert np.abs(shares[0] - shares[1]).max() < 0.02
        assert abs(np.mean([crop.flip for crop in ours]) - 0.3) < 0.015


@pytest.mark.parametrize("mode", ["const", "pixel"])
def test_fused_erasing_erases_as_torchvision(stores: dict[str, Path], mode: str) -> None:
    steps = [v1.Resize((40, 40)), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    erasing = v1.RandomErasing(0.5, value=0 if mode == "const" else "random")
    loader = create_loader(LMDBDataset(stores["plain"], v1.Compose([*steps, erasing]), resize="exact"), **OPTIONS)
    expected = unfused(stores["plain"], v1.Compose(steps))
    erased, count = 0, 0
    for _ in range(40):
        images = images_of(loader)
        changed = (images != expected).any(1)
        erased += int(changed.flatten(1).any(1).sum())
        count += len(images)
        for image, mask in zip(images, changed, strict=True):
            rows, columns = mask.any(1), mask.any(0)
            assert mask.float().mean() < 0.35
            if mode == "const":
                assert not image[:, mask].any()
                assert mask.sum() == rows.sum() * columns.sum()
    assert abs(erased / count - 0.5) < 0.12


UNCHANGED: dict[str, Any] = {
    "unknown step": lambda: [v1.RandomResizedCrop(40), v1.Lambda(lambda image: image), *FLOATS["v1"]()],
    "erasing with a color": lambda: [v1.RandomResizedCrop(40), v1.ToTensor(), v1.RandomErasing(1, value=0.5)],
    "step on floats": lambda: [v1.RandomResizedCrop(40), v1.ToTensor(), v1.ColorJitter(0.5)],
    "fill": lambda: [v1.RandomCrop(40, padding=4, fill=9), v1.Pad(1), *FLOATS["v1"]()],
    "without antialias": lambda: [v2.ToImage(), v2.RandomResizedCrop(40, antialias=False), *FLOATS["v2"]()[1:]],
    "jitter": lambda: [v2.RandomResizedCrop(40), v2.ColorJitter(0.4, 0.4, 0.4), v2.PILToTensor()],
    "jitter on tensors": lambda: [v2.ToImage(), v2.RandomResizedCrop(40), v2.ColorJitter(0.4), *FLOATS["v2"]()[1:]],
    "gray": lambda: [v1.RandomResizedCrop(40), v1.Grayscale(), v1.ToTensor(), v1.Normalize([0.5], [0.5])],
    "timm": lambda: timm_data.create_transform(40, is_training=True, auto_augment="rand-m9-mstd0.5").transforms,
}


FUSED_HEADS = ("unknown step", "erasing with a color", "step on floats", "jitter", "jitter on tensors", "gray", "timm")


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.parametrize("name", UNCHANGED)
def test_steps_that_are_not_fused_run_as_torchvision_runs_them(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    steps = UNCHANGED[name]()
    head, fused = read_head(steps)
    assert (head is not None) == (name in FUSED_HEADS)
    # Both sides get the same pixels if the head takes whole images, and the same numbers if each sample has a seed.
    whole: Any = Crop(0, 0, 40, 40, interpolation="bilinear" if name == "jitter on tensors" else "BILINEAR")

    def take_all(_head: Head, _numbers: Any, width: int, height: int) -> Any:
        return whole._replace(width=width, height=height)

    monkeypatch.setattr(Head, "choose_crop", take_all)
    middle, samples = Middle.__call__, itertools.count()

    def seeded(*arguments: Any) -> Any:
        seed_all(next(samples))
        return middle(*arguments)

    monkeypatch.setattr(Middle, "__call__", seeded)
    loader = create_loader(LMDBDataset(stores["plain"], v1.Compose(steps)), normalize=None, **OPTIONS)
    expected = []
    dataset: Any = LMDBDataset(stores["plain"])
    for index, (image, _) in enumerate(dataset):
        if head is not None:
            before = [v2.ToImage(), v2.Resize((40, 40))] if name == "jitter on tensors" else [v1.Resize((40, 40))]
            image = v2.Compose(before)(image)
        seed_all(index)
        expected.append(v1.Compose(steps[fused:])(image))
    found = images_of(loader)
    assert found.dtype is expected[0].dtype
    assert torch.equal(found, torch.stack(expected))


def identity(image: Any) -> Any:
    return image


RANDOM: dict[str, Any] = {
    "fused in part": lambda: timm_data.create_transform(40, is_training=True, auto_augment="rand-m9", re_prob=0.5),
    "no step fused": lambda: v1.Compose([v1.RandomRotation(20), identity, v1.Resize((40, 40)), v1.ToTensor()]),
}


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("name", RANDOM)
def test_steps_that_are_not_fused_resume_in_worker_processes(
    stores: dict[str, Path], name: str, num_workers: int
) -> None:
    options: dict[str, Any] = {**OPTIONS, "batch_size": 2, "is_training": True}
    options["transform"], dataset = RANDOM[name](), LMDBDataset(stores["plain"])
    whole = [images for images, _ in create_loader(dataset, **{**options, "num_workers": 2})]
    loader = create_loader(dataset, **{**options, "num_workers": num_workers})
    batches = iter(loader)
    found = [next(batches)[0]]
    state = loader.state_dict()
    loader.close()
    loader.load_state_dict(state)
    found += [images for images, _ in loader]
    assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))
    work = loader.stats().work
    assert work is not None
    assert work.steps > 0


def test_step_with_a_hook_is_not_fused(stores: dict[str, Path]) -> None:
    resize, normalize = v1.Resize((40, 40)), v1.Normalize(MEAN, STD)
    resize.register_forward_pre_hook(lambda _, images: (images[0].rotate(90),))
    normalize.register_forward_hook(lambda *arguments: arguments[-1] + 5)
    transform = v1.Compose([resize, v1.ToTensor(), normalize])
    loader = create_loader(LMDBDataset(stores["plain"]), transform=transform, **OPTIONS)
    assert torch.equal(images_of(loader), unfused(stores["plain"], transform))


def test_changed_transform_is_refused(stores: dict[str, Path]) -> None:
    transform = v1.Compose([v1.Resize(60), v1.CenterCrop(48), v1.ToTensor()])
    dataset = LMDBDataset(stores["plain"], transform)
    loader = create_loader(dataset, **OPTIONS)
    next(iter(loader))
    message = "the transform was changed after create_loader, which has fused its steps"
    transform.transforms[0].size = 64
    with pytest.raises(OptionError, match=message):
        next(iter(loader))
    transform.transforms[0].size = 60
    next(iter(loader))
    dataset.transform = v1.ToTensor()
    with pytest.raises(OptionError, match=message):
        next(iter(loader))
    loader = create_loader(dataset, transform=transform, fuse=False, **OPTIONS)
    transform.transforms[1].size = (32, 32)
    assert images_of(loader).shape == (8, 3, 32, 32)


def test_ones_own_loader_follows_changes_of_a_transform(stores: dict[str, Path]) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(40), v1.ToTensor()])
    dataset = LMDBDataset(stores["plain"], transform, resize="fast")
    assert dataset[0][0].shape == (3, 40, 40)
    transform.transforms[0].size = (24, 32)
    assert dataset[0][0].shape == (3, 24, 32)
    transform.transforms.append(v1.Normalize([10.0], [1.0]))
    assert dataset[0][0].max() < -8
    dataset.transform = None
    assert dataset[0][0].size == (100, 90)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ones_own_loader_draws_the_same_crops_with_any_resize(stores: dict[str, Path], num_workers: int) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.PILToTensor()])
    images = []
    for resize in ("exact", "fast"):
        torch.manual_seed(1)
        dataset = Subset(LMDBDataset(stores["tiled"], transform, resize=resize), range(7))
        images.append(images_of(DataLoader(dataset, 4, num_workers=num_workers)).int())
    assert 0 < (images[0] - images[1]).abs().max() <= 2


def test_ones_own_loader_runs_steps_in_a_decoder_unless_resize_is_exact(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Head, "choose_crop", None)
    transform = v1.Compose([v1.RandomResizedCrop(40), v1.ToTensor()])
    for resize in (None, "exact"):
        LMDBDataset(stores["plain"], transform, resize=resize)[0]
    with pytest.raises(TypeError, match="NoneType"):
        LMDBDataset(stores["plain"], transform, resize="fast")[0]


def test_crop_of_an_image_of_one_pixel_is_not_empty() -> None:
    head, _ = read_head([v1.RandomResizedCrop(40, ratio=(5, 9))], "fast", own=True)
    assert head is not None
    assert head(np.zeros((1, 1, 3), np.uint8)).shape == (3, 40, 40)


def test_collate_fn_that_mixes_gets_what_the_transform_makes(stores: dict[str, Path]) -> None:
    dataset = LMDBDataset(stores["plain"], v1.Compose([*EVALUATIONS["resize and crop"](), *FLOATS["v1"]()]))
    mixup = v2.MixUp(num_classes=2)

    def mix_up(samples: Any) -> Any:
        torch.manual_seed(2)
        return mixup(*default_collate(samples))

    loaders: list[Any] = [
        DataLoader(dataset, 4, collate_fn=mix_up),
        create_loader(dataset, collate_fn=mix_up, **OPTIONS),
    ]
    (images, labels), (expected, expected_labels) = (next(iter(loader)) for loader in loaders)
    assert torch.equal(images, expected)
    assert torch.equal(labels, expected_labels)


def test_repr_shows_where_each_step_runs(stores: dict[str, Path]) -> None:
    steps = [
        v1.RandomResizedCrop(40),
        v1.RandomHorizontalFlip(),
        v1.Grayscale(3),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ]
    dataset = LMDBDataset(stores["plain"], v1.Compose(steps))
    lines = repr(create_loader(dataset, **OPTIONS)).split("\n  ")
    assert lines[1:] == [
        "while decoding: RandomResizedCrop, RandomHorizontalFlip",
        "each sample: Grayscale",
        "each batch, on the device: ToTensor, Normalize",
    ]
    assert "\n" not in repr(create_loader(dataset, fuse=False, **OPTIONS))


def test_transform_of_which_no_step_is_known_runs_unchanged(stores: dict[str, Path]) -> None:
    class Own(v1.Resize):  # type: ignore[misc, name-defined]
        pass

    transform = v1.Compose([Own((40, 40)), v1.ToTensor()])
    dataset = LMDBDataset(stores["plain"], transform)
    loader = create_loader(dataset, **OPTIONS)
    assert repr(loader).split("\n  ")[1:] == ["each sample: Own, ToTensor"]
    assert torch.equal(images_of(loader), unfused(stores["plain"], transform))
    dataset.transform = v1.PILToTensor()
    transform.transforms[0].size = (30, 30)
    dataset.transform = transform
    assert images_of(loader).shape == (8, 3, 30, 30)


def test_default_normalize_leaves_the_floats_of_a_transform(stores: dict[str, Path]) -> None:
    transform = v1.Compose([*EVALUATIONS["resize and crop"](), *FLOATS["v1"]()])
    dataset = LMDBDataset(stores["plain"], transform)
    for fuse in (True, False):
        images = images_of(create_loader(dataset, fuse=fuse, **OPTIONS))
        assert images.dtype is torch.float32
        with pytest.raises(OptionError, match=r"images must be uint8 to be normalized, got torch.float32"):
            next(iter(create_loader(dataset, normalize=Normalize(), fuse=fuse, **OPTIONS)))


def test_subsets_mixtures_and_dicts_are_fused(stores: dict[str, Path]) -> None:
    transform = v1.Compose([*EVALUATIONS["resize and crop"](), *FLOATS["v1"]()])
    expected = unfused(stores["plain"], transform)
    whole = LMDBDataset(stores["plain"], resize="exact")
    part = create_loader(Subset(whole, [3, 5, 6]), transform=transform, **OPTIONS)
    assert torch.equal(images_of(part), expected[[3, 5, 6]])
    tiled = LMDBDataset(stores["tiled"], resize="exact")
    mixed = create_loader(mix({whole: 1, tiled: 1}), transform=transform, **OPTIONS)
    assert "while decoding" in repr(mixed)
    found = images_of(mixed)
    assert all(any(torch.equal(image, one) for one in expected) for image in found)
    fields = LMDBDataset(stores["plain"], transform, fields={"pixels": "image", "id": "index"}, resize="exact")
    batch = next(iter(create_loader(fields, **OPTIONS)))
    assert torch.equal(batch["pixels"], expected[batch["id"]])


def test_collate_fn_gets_the_samples_of_the_transform(stores: dict[str, Path]) -> None:
    transform = v1.Compose([*EVALUATIONS["resize and crop"](), *FLOATS["v1"]()])
    loader = create_loader(LMDBDataset(stores["plain"], transform), collate_fn=Collate(["image"]), **OPTIONS)
    assert torch.equal(torch.stack(next(iter(loader))[0]), unfused(stores["plain"], transform)[:4])
