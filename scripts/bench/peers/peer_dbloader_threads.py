"""dbloader with worker threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from contender import SIZE

from dbloader import LMDBDataset, create_loader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def batches(place: Path, workers: int, kind: Literal["threads", "processes"] = "threads") -> Iterable[Any]:
    return create_loader(
        LMDBDataset(place),
        batch_size=64,
        input_size=SIZE,
        is_training=True,
        device=None,
        normalize=None,
        num_workers=workers,
        worker_type=kind,
    )
