"""The user's own transforms in torch's DataLoader: on torchvision's ImageFolder, or on an LMDBDataset in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks import user_transform
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tasks import Task


def batches(place: Path, workers: int, task: Task, resize: str | None = None) -> Iterable[Any]:
    """Return a DataLoader.

    Args:
        place: A folder, or an LMDB file.
        workers: Processes.
        task: The transforms, and the size of a batch.
        resize: The option of LMDBDataset; None for an ImageFolder.
    """
    transform = user_transform(task.transforms)
    dataset: Any
    if place.is_dir():
        from torchvision.datasets import ImageFolder

        dataset = ImageFolder(place, transform)
    else:
        from dbloader import LMDBDataset

        options: dict[str, Any] = {} if resize is None else {"resize": resize}
        dataset = LMDBDataset(place, transform, **options)
    return DataLoader(dataset, task.batch, sampler=task.sampler(dataset), num_workers=workers, drop_last=True)
