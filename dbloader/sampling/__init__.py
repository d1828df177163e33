"""Samplers: in which order a dataset is gone through, on one process or on many, and from the middle."""

from dbloader.sampling.base import ResumableSampler
from dbloader.sampling.batches import CountedBatchSampler, KeyedBatchSampler
from dbloader.sampling.blocks import BlockShuffleSampler
from dbloader.sampling.shuffle import OrderedSampler, ShuffleSampler
from dbloader.sampling.weighted import ClassBalancedSampler, WeightedSampler

__all__ = [
    "BlockShuffleSampler",
    "ClassBalancedSampler",
    "CountedBatchSampler",
    "KeyedBatchSampler",
    "OrderedSampler",
    "ResumableSampler",
    "ShuffleSampler",
    "WeightedSampler",
]
