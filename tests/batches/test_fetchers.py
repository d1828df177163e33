"""Fetchers return what torch would collate from the samples, and raise the samples' errors."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from dbloader import LMDBDataset, Record
from dbloader.batches.base import call_now
from dbloader.batches.fetchers import SampleBatchFetcher, create_fetcher
from dbloader.batches.tensors import TensorBatchFetcher
from dbloader.decoding import DecodeTensor, RandomResizedCrop
from dbloader.errors import NotAnImageError
from dbloader.sampling.rng import SeededIndices
from tests.support.images import photo
from tests.support.loaders import thread_loader
from tests.support.samples import same
from tests.support.stores import store_samples

LENGTH = 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "photos.lmdb"
    store_samples((Record(f"{n}.jpg", n % 3, photo(n), fields={"n": n}) for n in range(LENGTH)), place)
    return place


def seeded(indices: Sequence[int]) -> SeededIndices:
    return SeededIndices(indices, 5, 2, range(20, 20 + len(indices)))


class Twice:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() * 2


KINDS: dict[str, dict[str, Any]] = {
    "tensors": {"decode": RandomResizedCrop(8)},
    "tensors of fields": {"decode": RandomResizedCrop(8), "fields": ("n", "image")},
    "records": {"decode": RandomResizedCrop(8), "transform": Twice()},
    "records without images": {"decode": RandomResizedCrop(8), "fields": ("n", "label")},
    "records of one size": {"decode": DecodeTensor()},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 5])
def test_batch_of_a_store_equals_collated_samples(place: Path, kind: str, size: int) -> None:
    dataset = LMDBDataset(place, **KINDS[kind])
    fetcher = create_fetcher(dataset)
    assert type(fetcher) is (TensorBatchFetcher if kind.startswith("tensors") else SampleBatchFetcher)
    indices = seeded([7, 0, 7, 3, -1])
    expected = default_collate(dataset.__getitems__(indices))
    made = pickle.loads(pickle.dumps(fetcher)).begin(indices, call_now, size)()  # noqa: S301
    assert made.samples == 5
    assert made.work.read > 0
    assert same(made.batch, expected)


def test_fetcher_uses_the_call_of_a_decoder_subclass(place: Path) -> None:
    class Dark(RandomResizedCrop):
        def __call__(self, *arguments: Any, **options: Any) -> torch.Tensor:
            return super().__call__(*arguments, **options) // 2

    indices = seeded([3, 1])
    bright, dark = (
        create_fetcher(LMDBDataset(place, decode=kind(8))).begin(indices, call_now, 2)()
        for kind in (RandomResizedCrop, Dark)
    )
    assert torch.equal(dark.batch[0], bright.batch[0] // 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_first_error_in_a_batch_names_the_damaged_record(tmp_path: Path, workers: int) -> None:
    images = [photo(0), photo(1), b"\xff\xd8\xff damaged", photo(3), b"\xff\xd8\xff too", photo(5)]
    store_samples((Record(f"{n}.jpg", 0, image) for n, image in enumerate(images)), tmp_path / "some.lmdb")
    with LMDBDataset(tmp_path / "some.lmdb", decode=RandomResizedCrop(8)) as dataset:
        iterator = iter(thread_loader(dataset, 2, num_workers=workers))
        assert next(iterator).samples == 2
        with pytest.raises(NotAnImageError, match="in no known format") as caught:
            next(iterator)
        assert "record 2 (2.jpg)" in caught.value.__notes__[0]
        assert list(iterator) == []
