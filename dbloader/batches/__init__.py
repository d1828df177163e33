"""Whole batches of a dataset: decoded in parts, and put together once."""

from dbloader.batches.alone import compute_alone
from dbloader.batches.base import BatchMaker, call, part_size, whole
from dbloader.batches.blocks import Blocks
from dbloader.batches.choice import choose_maker
from dbloader.batches.workers import MadeBatches, as_made

__all__ = [
    "BatchMaker",
    "Blocks",
    "MadeBatches",
    "as_made",
    "call",
    "choose_maker",
    "compute_alone",
    "part_size",
    "whole",
]
