"""LitData: optimized chunks on this disk, Pillow, and its StreamingDataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from folder import Transform, shuffled_files
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def prepare(source: Path, place: Path) -> None:
    place.mkdir()
    writer = BinaryWriter(str(place), chunk_bytes="64MB")
    for number, (data, label) in enumerate(shuffled_files(source)):
        writer[number] = {"image": data, "label": label}
    writer.done()
    writer.merge()


class Images(StreamingDataset):  # type: ignore[misc] # it ships no types
    def __init__(self, place: Path) -> None:
        super().__init__(str(place), shuffle=True, drop_last=True)
        self.image = Transform()

    @override
    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self.image(sample["image"]), sample["label"]


def batches(place: Path, workers: int) -> Iterable[Any]:
    return StreamingDataLoader(Images(place), batch_size=64, num_workers=workers, drop_last=True)  # type: ignore[no-any-return]
