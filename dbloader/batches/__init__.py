"""Whole batches of a dataset: read together, decoded in parts, and put together once."""

from dbloader.batches.base import BatchMaker, part_size
from dbloader.batches.choice import choose_maker
from dbloader.batches.encoded import EncodedBatchMaker
from dbloader.batches.tensors import TensorBatchMaker
from dbloader.batches.workers import MadeBatches, as_made

__all__ = [
    "BatchMaker",
    "EncodedBatchMaker",
    "MadeBatches",
    "TensorBatchMaker",
    "as_made",
    "choose_maker",
    "part_size",
]
