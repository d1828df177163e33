"""Seventy transforms on forty images: dbloader gives what torchvision, timm and Pillow give.

Both sides draw the same random numbers, so the results must be equal. If torch resizes instead of Pillow, fused steps
must equal unfused steps, and differ from Pillow's pixels by at most two levels.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from dbloader import ImageFormat, LMDBDataset, convert, create_loader
from dbloader.decoding import RandomCrop
from dbloader.decoding.open import decode_pil
from dbloader.ext.fusing import plan
from dbloader.ext.fusing.head import OwnHead, read_head
from dbloader.ext.fusing.steps import find_step
from tests.support import jpegs

REASON = "torchvision is not installed: scripts/frameworks torchvision"
datasets = pytest.importorskip("torchvision.datasets", reason=REASON)
v1 = pytest.importorskip("torchvision.transforms", reason=REASON)
v2 = pytest.importorskip("torchvision.transforms.v2", reason=REASON)
create_transform = pytest.importorskip("timm.data", reason=REASON).create_transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BICUBIC, LANCZOS, NEAREST = (v1.InterpolationMode(name) for name in ("bicubic", "lanczos", "nearest"))


class OwnCrop(v1.RandomResizedCrop):  # type: ignore[misc, name-defined]
    """A subclass, which may do anything."""

    def forward(self, image: Any) -> Any:
        return super().forward(image.rotate(3))


def invert(image: Any) -> Any:
    return ImageOps.invert(image)


def to_array(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((30, 20))))


def floats(m: Any, *more: Any) -> list[Any]:
    made = [m.ToTensor()] if m is v1 else [m.ToImage(), m.ToDtype(torch.float32, scale=True)]
    return [*made, m.Normalize(MEAN, STD), *more]


# PLAIN transforms only resize, crop and mirror, and then make floats.
PLAIN: dict[str, Any] = {
    "classic": lambda m: [m.RandomResizedCrop(40), m.RandomHorizontalFlip(), *floats(m)],
    "uint8": lambda m: [m.RandomResizedCrop(40), m.RandomHorizontalFlip(), m.PILToTensor()],
    "bicubic": lambda m: [m.RandomResizedCrop(40, interpolation=BICUBIC), m.RandomHorizontalFlip(0.2), *floats(m)],
    "lanczos": lambda m: [m.RandomResizedCrop((40, 56), (0.3, 0.9), interpolation=LANCZOS), *floats(m)],
    "whole": lambda m: [m.RandomResizedCrop(40, (1, 1), (1, 1)), m.RandomHorizontalFlip(1), *floats(m)],
    "no antialias": lambda m: [
        m.RandomResizedCrop([40], antialias=False, interpolation=NEAREST),
        m.RandomHorizontalFlip(0),
        *floats(m),
    ],
    "evaluation": lambda m: [m.Resize(60), m.CenterCrop(48), *floats(m)],
    "evaluation, bicubic": lambda m: [m.Resize([60], BICUBIC), m.CenterCrop((40, 48)), m.PILToTensor()],
    "larger": lambda m: [m.Resize(30), m.CenterCrop(50), *floats(m)],
    "squash": lambda m: [m.Resize((40, 56)), *floats(m)],
    "squash, cut": lambda m: [m.Resize([40, 41]), m.CenterCrop(30), m.RandomHorizontalFlip(), *floats(m)],
    "squash, larger": lambda m: [m.Resize((40, 56)), m.CenterCrop(60), *floats(m)],
    "max_size": lambda m: [m.Resize(30, max_size=50), m.CenterCrop(28), *floats(m)],
    "padded": lambda m: [m.RandomCrop(40, padding=(3, 5), pad_if_needed=True), m.RandomHorizontalFlip(), *floats(m)],
    "fill": lambda m: [m.RandomCrop(40, padding=4, pad_if_needed=True, fill=9), *floats(m)],
    "reflect": lambda m: [m.RandomCrop(28, padding=4, pad_if_needed=True, padding_mode="reflect"), *floats(m)],
    "center only": lambda m: [m.CenterCrop(64), *floats(m)],
    "flip first": lambda m: [m.RandomHorizontalFlip(), m.RandomResizedCrop(40), *floats(m)],
    "nested": lambda m: [m.Compose([m.RandomResizedCrop(40), m.Compose([m.RandomHorizontalFlip()])]), *floats(m)],
}
OTHERS: dict[str, Any] = {
    "jitter": lambda m: [m.RandomResizedCrop(40), m.RandomHorizontalFlip(), m.ColorJitter(0.4, 0.4, 0.4), *floats(m)],
    "floats, then jitter": lambda m: [m.RandomResizedCrop(40), *floats(m)[:-1], m.ColorJitter(0.4)],
    "two normalizes": lambda m: [m.RandomResizedCrop(40), *floats(m, m.Normalize([0.5], [2.0]))],
    "erasing": lambda m: [m.RandomResizedCrop(40), *floats(m, m.RandomErasing(0.5))],
    "erasing, then normalize": lambda m: [m.Resize((40, 40)), *floats(m)[:-1], m.RandomErasing(1), floats(m)[-1]],
    "Lambda": lambda m: [m.Lambda(invert), m.RandomResizedCrop(40), *floats(m)],
    "function": lambda m: [m.RandomResizedCrop(40), invert, m.RandomHorizontalFlip(), *floats(m)],
    "choices": lambda m: [
        m.RandomChoice([m.RandomResizedCrop(40), m.Resize((40, 40))]),
        m.RandomApply([m.GaussianBlur(3)]),
        *floats(m),
    ],
    "augment": lambda m: [m.RandomResizedCrop(40), m.RandomHorizontalFlip(), m.AutoAugment(), *floats(m)],
    "gray": lambda m: [m.Resize(60), m.CenterCrop(48), m.Grayscale(1), m.PILToTensor()],
    "geometry": lambda m: [
        m.Pad(3, fill=7),
        m.RandomRotation(20),
        m.Resize((40, 40)),
        m.RandomVerticalFlip(),
        *floats(m),
    ],
    "subclass": lambda m: [OwnCrop(40), m.RandomHorizontalFlip(), *floats(m)],
}
ONLY: dict[str, Any] = {
    "v1, converted": lambda: v1.Compose(
        [v1.RandomResizedCrop(40), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize([0.5], [0.25])]
    ),
    "v2, image first": lambda: v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(40), v2.RandomHorizontalFlip(), *floats(v2)]
    ),
    "v2, JPEG": lambda: v2.Compose([v2.RandomResizedCrop(40), v2.ToImage(), v2.ToPureTensor(), v2.JPEG((40, 80))]),
    "mixed": lambda: v2.Compose([v1.RandomResizedCrop(40), v2.RandomHorizontalFlip(), v1.ToTensor()]),
    "timm, training": lambda: create_transform(40, is_training=True),
    "timm, augmented": lambda: create_transform(40, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.3),
    "timm, evaluation": lambda: create_transform(40, crop_pct=0.9, interpolation="bicubic"),
    "Pillow": lambda: to_array,
}
TRANSFORMS: dict[str, Any] = {
    **{
        f"{name}, {version}": lambda m=m, make=make: m.Compose(make(m))
        for (name, make), (version, m) in itertools.product({**PLAIN, **OTHERS}.items(), (("v1", v1), ("v2", v2)))
    },
    **ONLY,
}
NEAR = {f"{name}, {version}" for name in PLAIN for version in ("v1", "v2")} | {"v1, converted", "timm, evaluation"}
# Transforms whose first steps no Decoder does.
WITHOUT_HEAD = {
    f"{name}, {version}"
    for name in ("squash, larger", "max_size", "fill", "reflect", "center only", "flip first", "geometry", "subclass")
    for version in ("v1", "v2")
} | {"Lambda, v1", "Lambda, v2", "choices, v1", "choices, v2", "Pillow"}


def draw_images(folder: Path) -> None:
    """Draw forty images: most are photographs in JPEGs, some are PNG, WebP or GIF of other modes, some are tiny."""
    for number in range(40):
        width, height = (90 + 7 * number, 80 + 11 * (number % 9)) if number % 13 else (20 + number, 33)
        image = jpegs.draw(width, height, seed=number)
        place = folder / "ab"[number % 2] / f"{number:02}"
        place.parent.mkdir(parents=True, exist_ok=True)
        mode = {3: "L", 7: "RGBA", 11: "P", 15: "1", 19: "I;16", 23: "LA", 27: "CMYK"}.get(number, "RGB")
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
        elif mode != "RGB":
            image = image.convert(mode)
        lossless = mode not in ("L", "RGB", "CMYK") or number in (31, 35)
        kind = "webp" if number in (5, 9) else "png" if lossless else "jpg"
        image.save(place.with_suffix(f".{kind}"), quality=90, progressive=number in (17, 21))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain and a tiled store of the images."""
    folder = tmp_path_factory.mktemp("same")
    draw_images(folder / "images")
    convert(folder / "images", folder / "plain.lmdb")
    convert(folder / "images", folder / "tiled.lmdb", images=ImageFormat(tile=True))
    theirs = datasets.ImageFolder(folder / "images")
    plain: Any = LMDBDataset(folder / "plain.lmdb")
    for index, (image, _) in enumerate(plain):
        if "19" not in theirs.imgs[index][0]:  # torchvision makes 16-bit values white
            assert image.tobytes() == theirs[index][0].tobytes()
    return {name: folder / f"{name}.lmdb" for name in ("plain", "tiled")}


def seed_all() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:Anti-alias option is always applied")
@pytest.mark.parametrize("kind", ["plain", "tiled"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_own_data_loader_gets_what_torchvision_makes(stores: dict[str, Path], name: str, kind: str) -> None:
    transform = TRANSFORMS[name]()
    everything = range(len(LMDBDataset(stores[kind])))
    files: list[Any] = [record.image for record in LMDBDataset(stores["plain"]).records(everything)]
    seed_all()
    expected = [transform(decode_pil(data)) for data in files]
    exact, fast = LMDBDataset(stores[kind], transform), LMDBDataset(stores[kind], transform, resize="fast")
    seed_all()
    assert_equal([image for image, _ in exact.__getitems__(everything)], expected)
    seed_all()
    unfused = [fast.sample(record)[0] for record in fast.records(everything)]
    seed_all()
    found = [image for image, _ in fast.__getitems__(everything)]
    assert_equal(found, unfused)
    if name in NEAR:
        level = 1 if found[0].dtype is torch.uint8 else 1 / 255 / min(STD)
        differences = [(one.double() - other.double()).abs().max() for one, other in zip(found, expected, strict=True)]
        assert max(differences) <= 2.01 * level


def draw_crop(self: RandomCrop, _: Any, width: int, height: int) -> Any:
    """Choose the crop that torchvision's RandomCrop chooses."""
    left, top, right, bottom = self.padding
    full = [top + height + bottom, left + width + right]
    full = [side + 2 * max(0, wanted - side) for side, wanted in zip(full, self.size, strict=True)]
    more = [side - wanted for side, wanted in zip(full, self.size, strict=True)]
    is_v1 = vars(self)["library"] == "v1"
    drawn = [int(torch.randint(0, each + 1, (1,))) if each or (is_v1 and any(more)) else 0 for each in more]
    numbers = [(one + 0.5) / (each + 1) for one, each in zip(drawn, more, strict=True)]
    return CHOOSE(self, [0.9, *numbers], width, height)


CHOOSE = RandomCrop.choose_crop


def read_own_head(steps: Any, resize: Any) -> Any:
    """Return a Decoder that draws the same numbers as the steps."""
    head: Any
    head, count = read_head(steps, resize, own=True)
    if head is None:
        head, count = read_head(steps, resize)
        if head is not None:
            head.__class__, head.draws = OwnHead, 0
            head.crops.library = find_step(steps[0])[0]
    return head, count


@pytest.mark.filterwarnings("ignore:Anti-alias option is always applied")
@pytest.mark.parametrize("kind", ["plain", "tiled"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_create_loader_gives_the_same_with_and_without_fusing(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(plan, "read_head", read_own_head)
    monkeypatch.setattr(RandomCrop, "choose_crop", draw_crop)
    transform = TRANSFORMS[name]()
    batch = 1 if name.startswith(("Pillow", "center", "geometry")) else 5
    for resize in ("exact", "fast"):
        dataset = LMDBDataset(stores[kind], transform, resize=resize)
        images = []
        for fuse in (False, True):
            loader = create_loader(dataset, batch_size=batch, normalize=None, device="cpu", num_workers=0, fuse=fuse)
            seed_all()
            images.append([image for some, _ in loader for image in some])
        assert ("while decoding" in repr(loader)) == (name not in WITHOUT_HEAD)
        if "RandomErasing" in repr(loader).partition("device: ")[2]:  # draws other random numbers
            images = [[torch.zeros_like(image) for image in some] for some in images]
        assert_equal(*images)
