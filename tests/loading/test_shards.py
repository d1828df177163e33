"""A folder of shards is loaded like a single file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from dbloader import LMDBDataset, convert, create_loader
from tests.conversion.test_shards import Here
from tests.support.images import plant_photos


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    root = plant_photos(tmp_path / "images", 24)
    convert(root, tmp_path / "one.lmdb")
    convert(root, tmp_path / "shards.lmdb", shards=5, executor=Here())
    return tmp_path / "one.lmdb", tmp_path / "shards.lmdb"


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "count"), [("processes", 2), ("threads", 0)])
def test_sharded_store_gives_the_batches_of_one_file(
    places: tuple[Path, Path], workers: Literal["threads", "processes"], count: int
) -> None:
    batches = []
    for place in places:
        with LMDBDataset(place) as dataset:
            loader = create_loader(
                dataset, 16, 8, is_training=True, num_workers=count, worker_type=workers, device="cpu", seed=3
            )
            batches.append([(images, labels) for images, labels in loader])
    for (images, labels), (expected, wanted) in zip(*batches, strict=True):
        assert images.equal(expected)
        assert labels.equal(wanted)
