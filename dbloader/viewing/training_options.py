"""The options of the training view. This module imports no torch."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """Settings that decide the batches of a training, with the names and defaults of `create_loader`."""

    seed: int = 0
    epoch: int = 0
    batch_size: int = 32
    world_size: int = 1
    rank: int = 0
    step: int = 0
    size: str = "224"  # height and width in pixels: "224", or "192x256"
    drop_last: bool = True
    # A state_dict() as JSON. It sets the order, seed and epoch, and step 0 is the first batch after the state.
    state: str = ""
