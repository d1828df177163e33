"""dbloader's create_loader, which decodes, crops, resizes and flips by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from contender import SIZE
from tasks import RESIZED

from dbloader import LMDBDataset, create_loader
from dbloader.decoding import RandomResizedCrop, ResizeCenterCrop

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tasks import Task


def batches(
    place: Path, workers: int, task: Task, kind: Literal["threads", "processes"], scaled: bool = False
) -> Iterable[Any]:
    """Return a loader. With ``scaled``, training decodes large images at a smaller size before resizing the crop."""
    dataset = LMDBDataset(place)
    training = RandomResizedCrop(SIZE, scaled=scaled)
    normalized: dict[str, Any] = {} if task.kind == "float32" else {"normalize": None}
    return create_loader(
        dataset,
        batch_size=task.batch,
        transform=training if task.is_training else ResizeCenterCrop(SIZE, resize=RESIZED),
        is_training=task.is_training,
        sampler=task.sampler(dataset),
        device=None,
        num_workers=workers,
        worker_type=kind,
        **normalized,
    )
