"""Decide the order of an epoch, on one process or on many, and go on from its middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports

if TYPE_CHECKING:
    from dbloader.sampling.base import ResumableSampler
    from dbloader.sampling.batches import CountedBatchSampler, SeededBatchSampler
    from dbloader.sampling.blocks import BlockShuffleSampler
    from dbloader.sampling.rng import SampleRNG, SeededIndices
    from dbloader.sampling.shuffle import OrderedSampler, ShuffleSampler
    from dbloader.sampling.weighted import ClassBalancedSampler, WeightedSampler

_MODULES = {
    "BlockShuffleSampler": "blocks",
    "ClassBalancedSampler": "weighted",
    "CountedBatchSampler": "batches",
    "OrderedSampler": "shuffle",
    "ResumableSampler": "base",
    "SampleRNG": "rng",
    "SeededBatchSampler": "batches",
    "SeededIndices": "rng",
    "ShuffleSampler": "shuffle",
    "WeightedSampler": "weighted",
}

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)

__all__ = [
    "BlockShuffleSampler",
    "ClassBalancedSampler",
    "CountedBatchSampler",
    "OrderedSampler",
    "ResumableSampler",
    "SampleRNG",
    "SeededBatchSampler",
    "SeededIndices",
    "ShuffleSampler",
    "WeightedSampler",
]
