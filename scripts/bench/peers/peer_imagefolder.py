"""A folder of files, Pillow, and torch's DataLoader: torchvision's ImageFolder and transforms, without torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from folder import FolderDataset
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def prepare(source: Path, place: Path) -> None:
    place.symlink_to(source.absolute())


def batches(place: Path, workers: int) -> Iterable[Any]:
    return DataLoader(FolderDataset(place), 64, shuffle=True, num_workers=workers, drop_last=True)
