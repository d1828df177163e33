"""DataLoaderX is the DataLoader of the well-known recipe, ahead of its consumer, by the same arguments."""

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dbloader.errors import OptionError
from dbloader.loading.background import BackgroundThread
from dbloader.loading.compat import DataLoaderX
from dbloader.sampling import ShuffleSampler

DATA: Any = list(range(10))


def numbers(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [0, 3])
def test_it_gives_what_a_data_loader_gives_each_epoch(workers: int, depth: int) -> None:
    plain = DataLoader(DATA, 4, num_workers=workers)
    loader: DataLoaderX[Any] = DataLoaderX(DATA, 4, num_workers=workers, depth=depth)
    assert isinstance(loader, DataLoader)
    assert [numbers(loader), numbers(loader)] == [numbers(plain)] * 2
    assert len(loader) == 3


def test_it_runs_ahead_in_a_thread_and_stops_with_break() -> None:
    made_in: list[Any] = []

    class Noted(list[int]):
        def __getitem__(self, index: Any) -> Any:
            made_in.append(threading.current_thread())
            return super().__getitem__(index)

    loader: DataLoaderX[Any] = DataLoaderX(Noted(DATA))
    for _ in loader:
        break
    loader.close()
    assert made_in
    assert all(isinstance(thread, BackgroundThread) for thread in made_in)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, BackgroundThread)]


def test_its_options_are_those_of_the_prefetch_loader() -> None:
    def double(images: torch.Tensor) -> torch.Tensor:
        return images * 2

    loader: DataLoaderX[Any] = DataLoaderX(DATA, 5, device="cpu", depth=1, preparation=double)
    assert numbers(loader) == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]
    assert (loader.stats().batches, loader.stats().samples, loader.stats().depth) == (2, 10, 1)
    with pytest.raises(OptionError, match="depth must be at least 0, got -1"):
        DataLoaderX(DATA, depth=-1)
    with pytest.raises(ValueError, match="sampler option is mutually exclusive with shuffle"):
        DataLoaderX(DATA, shuffle=True, sampler=[1])


def test_with_one_of_our_samplers_each_iter_is_the_next_epoch() -> None:
    loader: DataLoaderX[Any] = DataLoaderX(DATA, 10, sampler=ShuffleSampler(DATA))
    first, second = numbers(loader), numbers(loader)
    assert first != second
    loader.set_epoch(0)
    assert [numbers(loader), numbers(loader)] == [first, second]
    assert not hasattr(loader, "state_dict")


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])  # noqa: S301
def test_it_can_be_copied_and_pickled_while_it_is_iterated(clone: Any) -> None:
    loader: DataLoaderX[Any] = DataLoaderX(DATA, 5, depth=3, device="cpu")
    iterator = iter(loader)
    next(iterator)
    other = clone(loader)
    del loader
    assert numbers(other) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert other.stats().depth == 3
    assert numbers(iterator) == [[5, 6, 7, 8, 9]]


def test_it_is_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        loader: DataLoaderX[Any] = DataLoaderX(DATA)
        list(loader)
        freed = weakref.ref(loader)
        del loader
        assert freed() is None
    finally:
        gc.enable()
