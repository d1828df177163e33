"""MosaicML Streaming: MDS shards on this disk, Pillow, and torch's DataLoader."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from folder import Transform, shuffled_files
from torch.utils.data import DataLoader
from typing_extensions import override

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    # Streaming imports torchvision, which PyPI lacks for a CPU build of torch. Empty modules suffice: nothing is used.
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def prepare(source: Path, place: Path) -> None:
    with MDSWriter(out=str(place), columns={"image": "bytes", "label": "int"}) as writer:
        for data, label in shuffled_files(source):
            writer.write({"image": data, "label": label})


class Images(StreamingDataset):  # type: ignore[misc] # it ships no types
    def __init__(self, place: Path) -> None:
        clean_stale_shared_memory()  # of the previous process
        super().__init__(local=str(place), shuffle=True, batch_size=64)
        self.image = Transform()

    @override
    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self.image(sample["image"]), int(sample["label"])


def batches(place: Path, workers: int) -> Iterable[Any]:
    return DataLoader(Images(place), batch_size=64, num_workers=workers, drop_last=True)
