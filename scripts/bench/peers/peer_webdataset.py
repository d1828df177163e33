"""WebDataset: tar files of 250, a shuffle buffer of 1,000, Pillow, and its WebLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import webdataset as wds
from folder import Transform, shuffled_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def prepare(source: Path, place: Path) -> None:
    place.mkdir()
    with wds.ShardWriter(f"{place}/%06d.tar", maxcount=250, verbose=0) as sink:
        for number, (data, label) in enumerate(shuffled_files(source)):
            sink.write({"__key__": f"{number:08d}", "jpg": data, "cls": label})


def batches(place: Path, workers: int) -> Iterable[Any]:
    shards = sorted(map(str, place.glob("*.tar")))
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(Transform(), int)
        .batched(64, partial=False)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers)  # type: ignore[no-any-return] # it ships no types
