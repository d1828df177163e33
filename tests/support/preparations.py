"""A preparation of batches that draws random numbers."""

from __future__ import annotations

import torch
from typing_extensions import override

from dbloader.sampling.rng import SampleRNG


class Noise(torch.nn.Module):
    """Adds a random number to each image."""

    @override
    def forward(self, images: torch.Tensor, rng: SampleRNG | None = None) -> torch.Tensor:
        rng = SampleRNG.from_torch(len(images)) if rng is None else rng
        return images + torch.from_numpy(rng.uniform(1, "noise")).to(images)[..., None, None]
