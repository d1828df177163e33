"""Batches of images as tensors."""

from __future__ import annotations

import torch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)


def pixels(count: int = 4, channels: int = 3, height: int = 17, width: int = 23) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def sevens(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 7.0, dtype=dtype)
