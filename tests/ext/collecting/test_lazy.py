"""write_store stores lazy images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dbloader import LMDBDataset, write_store
from tests.datasets.test_lazy import eager, place  # noqa: F401 - place is a fixture


def test_write_store_stores_lazy_images_and_their_crops(place: Path, tmp_path: Path) -> None:  # noqa: F811
    write_store(LMDBDataset(place, resize="fast"), tmp_path / "copy.lmdb")
    assert LMDBDataset(tmp_path / "copy.lmdb").content_digest == LMDBDataset(place).content_digest
    write_store(LMDBDataset(place, lambda image: image.crop((3, 4, 50, 60))), tmp_path / "crops.lmdb")
    crops = LMDBDataset(tmp_path / "crops.lmdb")
    for at in range(len(crops)):
        image = crops[at][0]
        assert image.size == (47, 56)
        source = np.asarray(eager(LMDBDataset(place), at).crop((3, 4, 50, 60))).astype(int)
        assert np.abs(source - np.asarray(image)).mean() < 8
