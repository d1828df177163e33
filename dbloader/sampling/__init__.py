"""Choose the order of the samples in an epoch, on one process or many, and their random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dbloader._lazy import lazy_exports

if TYPE_CHECKING:
    from dbloader.ext.sampling.blocks import BlockShuffleSampler as BlockShuffleSampler
    from dbloader.ext.sampling.weighted import ClassBalancedSampler as ClassBalancedSampler
    from dbloader.ext.sampling.weighted import WeightedSampler as WeightedSampler
    from dbloader.sampling.base import ResumableSampler as ResumableSampler
    from dbloader.sampling.batches import SeededBatchSampler as SeededBatchSampler
    from dbloader.sampling.rng import SampleRNG as SampleRNG
    from dbloader.sampling.rng import SeededIndices as SeededIndices
    from dbloader.sampling.shuffle import OrderedSampler as OrderedSampler
    from dbloader.sampling.shuffle import ShuffleSampler as ShuffleSampler

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "BlockShuffleSampler": "ext.sampling.blocks",
        "ClassBalancedSampler": "ext.sampling.weighted",
        "OrderedSampler": "sampling.shuffle",
        "ResumableSampler": "sampling.base",
        "SampleRNG": "sampling.rng",
        "SeededBatchSampler": "sampling.batches",
        "SeededIndices": "sampling.rng",
        "ShuffleSampler": "sampling.shuffle",
        "WeightedSampler": "ext.sampling.weighted",
    },
)
