"""The user's own transforms in dbloader's create_loader, which fuses their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tasks import user_transform

from dbloader import LMDBDataset, create_loader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tasks import Task


def batches(
    place: Path, workers: int, task: Task, kind: Literal["threads", "processes"], resize: str | None = None
) -> Iterable[Any]:
    """Return a loader. ``resize`` is as in LMDBDataset."""
    dataset = LMDBDataset(place, user_transform(task.transforms), resize=resize)
    normalized: dict[str, Any] = {} if task.kind == "float32" else {"normalize": None}
    return create_loader(
        dataset,
        batch_size=task.batch,
        is_training=task.is_training,
        sampler=task.sampler(dataset),
        device=None,
        num_workers=workers,
        worker_type=kind,
        **normalized,
    )
