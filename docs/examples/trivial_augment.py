"""TrivialAugment and mixup for whole batches on a device, with torch alone; see docs/recipes.md.

    loader = create_loader(
        dataset, batch_size=64, is_training=True, normalize=None,
        preparation=Preparation(trivial_augment, Normalize(), Mixup(classes)),
    )

TrivialAugment (Müller and Hutter: TrivialAugment: Tuning-free Yet State-of-the-Art Data Augmentation, ICCV 2021)
applies one random operation with a random strength to each image. The strengths have the ranges of its wide space.
Sharpness and equalize are left out. The random numbers come from the loader, so a resumed run augments each image like
an uninterrupted run.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, one_hot

from dbloader.sampling import SampleRNG


def trivial_augment(images: Tensor, rng: SampleRNG | None) -> Tensor:
    """Return the augmented images, which are uint8 of shape (N, 3, height, width) like ``images``."""
    if rng is None:
        raise ValueError("trivial_augment needs a loader of dbloader, which passes the random numbers")
    numbers = torch.from_numpy(rng.uniform(3, "trivial_augment")).to(images.device, torch.float32)
    operation = (numbers[:, 0] * len(OPERATIONS)).long()
    strength, sign = numbers[:, 1], torch.where(numbers[:, 2] < 0.5, -1.0, 1.0)
    result = images.float()
    for number, apply in enumerate(OPERATIONS):
        chosen = (operation == number).nonzero()[:, 0]
        if len(chosen):
            result[chosen] = apply(result[chosen], strength[chosen], sign[chosen])
    return result.round_().clamp_(0, 255).to(torch.uint8)


class Mixup(nn.Module):
    """Mixes each image and its label with another image of the batch, by a random share from 0 to 1 (alpha = 1)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, images: Tensor, targets: Tensor, rng: SampleRNG) -> tuple[Tensor, Tensor]:
        share = torch.from_numpy(rng.uniform(1, "mixup")[:, 0]).to(images.device, images.dtype)
        targets = one_hot(targets, self.classes).to(images.dtype)
        mixed = torch.lerp(images, images.flip(0), share[:, None, None, None])
        return mixed, torch.lerp(targets, targets.flip(0), share[:, None])


def blend(images: Tensor, others: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    """Return others + factor * (images - others), with a factor from 0.01 to 1.99."""
    factor = 1 + 0.99 * sign * strength
    return others + factor[:, None, None, None] * (images - others)


def gray(images: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def identity(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return images


def brightness(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return blend(images, torch.zeros_like(images), strength, sign)


def color(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return blend(images, gray(images), strength, sign)


def contrast(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return blend(images, gray(images).mean((2, 3), keepdim=True), strength, sign)


def solarize(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    return torch.where(images >= 255 * (1 - strength[:, None, None, None]), 255 - images, images)


def posterize(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    step = 2 ** (6 * strength).round()[:, None, None, None]  # 8 to 2 bits are kept
    return (images / step).floor() * step


def autocontrast(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    least, most = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(most > least, (images - least) * 255 / (most - least).clamp(min=1), images)


def warp(images: Tensor, rows: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Move the pixels by the two rows of an affine matrix, in pixels from the center. Missing pixels become black."""
    height, width = images.shape[2:]
    matrix = torch.stack([torch.stack(row, 1) for row in rows], 1)
    # affine_grid takes coordinates from -1 to 1 on both axes.
    scale = torch.tensor([width / 2, height / 2, 1.0], device=images.device)
    matrix = matrix * scale / scale[:2, None]
    return grid_sample(
        images, affine_grid(matrix, list(images.shape), align_corners=False), "nearest", align_corners=False
    )


def shear_x(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones_like(sign), torch.zeros_like(sign)
    return warp(images, [(one, 0.99 * sign * strength, zero), (zero, one, zero)])


def shear_y(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones_like(sign), torch.zeros_like(sign)
    return warp(images, [(one, zero, zero), (0.99 * sign * strength, one, zero)])


def translate_x(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones_like(sign), torch.zeros_like(sign)
    return warp(images, [(one, zero, (32 * sign * strength).round()), (zero, one, zero)])


def translate_y(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    one, zero = torch.ones_like(sign), torch.zeros_like(sign)
    return warp(images, [(one, zero, zero), (zero, one, (32 * sign * strength).round())])


def rotate(images: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
    angle, zero = math.radians(135) * sign * strength, torch.zeros_like(sign)
    return warp(images, [(angle.cos(), -angle.sin(), zero), (angle.sin(), angle.cos(), zero)])


OPERATIONS = (
    identity, brightness, color, contrast, solarize, posterize, autocontrast,
    shear_x, shear_y, translate_x, translate_y, rotate,
)  # fmt: skip
