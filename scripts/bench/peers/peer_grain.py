"""Grain: an ArrayRecord file, Pillow, and its worker processes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import grain
from absl import flags
from array_record.python.array_record_module import ArrayRecordWriter
from folder import Transform, shuffled_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import numpy as np

_LABEL = 8  # number of bytes before the file


def prepare(source: Path, place: Path) -> None:
    writer = ArrayRecordWriter(str(place), "group_size:1")
    for data, label in shuffled_files(source):
        writer.write(label.to_bytes(_LABEL, "little") + data)
    writer.close()


class Decode:
    def __init__(self) -> None:
        self.image = Transform()

    def __call__(self, record: bytes) -> tuple[np.ndarray[Any, Any], int]:
        return self.image(record[_LABEL:]).numpy(), int.from_bytes(record[:_LABEL], "little")


def batches(place: Path, workers: int) -> Iterable[Any]:
    flags.FLAGS(sys.argv[:1])  # Grain's worker processes need parsed flags
    dataset = (
        grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(place)))
        .shuffle(seed=0)
        .map(Decode())
        .batch(64, drop_remainder=True)
        # By default Grain makes 500 batches ahead. That is more than an epoch, which would be finished before it is
        # measured.
        .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=2))
    )
    processes = grain.MultiprocessingOptions(num_workers=workers)
    return dataset.mp_prefetch(processes) if workers else dataset  # type: ignore[no-any-return] # it ships no types
