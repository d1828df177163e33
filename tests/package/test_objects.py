"""Slices of stores and datasets are lists, and the repr of a loader describes its dataset."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from dbloader import LMDBDataset, PrefetchLoader, convert, create_loader, open_store
from tests.support.images import plant_photos
from tests.support.loaders import thread_loader


@pytest.fixture
def place(tmp_path: Path) -> Path:
    convert(plant_photos(tmp_path / "images", 10), tmp_path / "s.lmdb")
    return tmp_path / "s.lmdb"


def test_slices_of_stores_and_datasets_are_lists(place: Path) -> None:
    with open_store(place) as store, LMDBDataset(place, fields=("name", "image")) as dataset:
        names = [store.name(index) for index in range(len(store))]
        for part in (slice(0, 3), slice(None), slice(-2, None), slice(8, 2, -3), slice(5, 5), slice(7, 100)):
            assert [record.name for record in store[part]] == names[part]
            assert [sample["name"] for sample in dataset[part]] == names[part]


def test_repr_of_a_loader_shows_batches_dataset_and_workers(place: Path) -> None:
    dataset = LMDBDataset(place)
    threads = create_loader(dataset, batch_size=4, input_size=8, num_workers=2, worker_type="threads", device="cpu")
    inner = "(3 batches of 4, LMDBDataset of 10 samples, 2 workers)"
    assert repr(threads) == f"PrefetchLoader(ThreadLoader{inner}, depth=2, device='cpu')"
    processes = create_loader(dataset, batch_size=4, input_size=8, num_workers=2, worker_type="processes", device=None)
    assert repr(processes) == f"PrefetchLoader(ProcessLoader{inner}, depth=2)"
    assert repr(thread_loader(dataset, 5)) == "ThreadLoader(2 batches of 5, LMDBDataset of 10 samples, 0 workers)"
    plain = PrefetchLoader(DataLoader(dataset, 3), depth=1)
    shown = "PrefetchLoader(DataLoader(4 batches of 3, LMDBDataset of 10 samples, 0 workers), depth=1)"
    assert repr(plain) == shown
    assert (
        repr(PrefetchLoader(plain)) == "PrefetchLoader(PrefetchLoader(4 batches of 3, LMDBDataset of 10 samples, "
        "0 workers), depth=2)"
    )
    assert repr(PrefetchLoader([1, 2])) == "PrefetchLoader(list(2 batches), depth=2)"
    assert repr(PrefetchLoader(iter([1]))) == "PrefetchLoader(list_iterator(), depth=2)"
