"""Loaders accept samplers around the core only for their own dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbloader import LMDBDataset, create_loader
from dbloader.errors import OptionError
from dbloader.sampling import BlockShuffleSampler, WeightedSampler
from tests.loading.test_create import CPU, LENGTH, Folder, place  # noqa: F401 - place is a fixture


@pytest.mark.parametrize(
    ("sampler", "population"),
    [
        (WeightedSampler([1, 2]), 2),
        (WeightedSampler([1, 2], LENGTH), 2),
        (BlockShuffleSampler(range(6)), 6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sampler_of_another_dataset_is_refused(place: Path, sampler: Any, population: int) -> None:  # noqa: F811
    for dataset in (LMDBDataset(place), Folder()):
        with pytest.raises(OptionError, match=f"which has {LENGTH} samples, got a .*Sampler for {population} samples$"):
            create_loader(dataset, sampler=sampler, **CPU)
