"""SPDL: a folder of files, and Pillow in the threads of its pipeline."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from folder import FolderDataset, Transform
from peer_imagefolder import prepare
from spdl.pipeline import PipelineBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["batches", "prepare"]


def batches(place: Path, workers: int) -> Iterator[Any]:
    dataset, transform = FolderDataset(place), Transform()

    def load(sample: tuple[str, int]) -> tuple[torch.Tensor, int]:
        return transform(Path(sample[0]).read_bytes()), sample[1]

    def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])

    threads = max(1, workers)
    pipeline = (
        PipelineBuilder()
        .add_source(random.sample(dataset.samples, len(dataset)))
        .pipe(load, concurrency=threads)
        .aggregate(64, drop_last=True)
        .pipe(collate)
        .add_sink(3)
        .build(num_threads=threads + 1)
    )
    with pipeline.auto_stop():
        yield from pipeline
