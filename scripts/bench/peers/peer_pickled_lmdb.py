"""A recipe found in many repositories: pickled (file, label) pairs in LMDB, Pillow, and torch's DataLoader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
from folder import FolderDataset, Transform
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def prepare(source: Path, place: Path) -> None:
    files = FolderDataset(source)
    with lmdb.open(str(place), subdir=False, map_size=2**36, lock=False) as env:
        for number, (path, label) in enumerate(files.samples):
            with env.begin(write=True) as txn:
                txn.put(str(number).encode(), pickle.dumps((Path(path).read_bytes(), label)))
        with env.begin(write=True) as txn:
            txn.put(b"__len__", pickle.dumps(len(files)))


class PickledDataset(Dataset[tuple["torch.Tensor", int]]):
    def __init__(self, place: Path) -> None:
        self.place = str(place)
        self.transform = Transform()
        self.env: Any = None
        with lmdb.open(self.place, subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
            self.length = int(pickle.loads(txn.get(b"__len__", b"")))  # noqa: S301 - of our own making

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.env is None:
            self.env = lmdb.open(self.place, subdir=False, readonly=True, lock=False, readahead=False, meminit=False)
        with self.env.begin() as txn:
            data, label = pickle.loads(txn.get(str(index).encode()))  # noqa: S301 - of our own making
        return self.transform(data), label


def batches(place: Path, workers: int) -> Iterable[Any]:
    return DataLoader(PickledDataset(place), 64, shuffle=True, num_workers=workers, drop_last=True)
