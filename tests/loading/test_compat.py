"""DataLoaderX and the functions of prefetch_generator work with another import."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dbloader.errors import OptionError
from dbloader.loading.background import BackgroundThread
from dbloader.loading.compat import BackgroundGenerator, DataLoaderX, background
from tests.support.loaders import Numbers, numbers

WAIT_S = 20.0


def test_background_generator_starts_at_once() -> None:
    begun = threading.Event()

    def produce() -> Iterator[int]:
        begun.set()
        yield from range(3)

    generator = BackgroundGenerator(produce())
    assert begun.wait(WAIT_S)
    assert [generator.next(), *generator] == [0, 1, 2]


def test_decorated_generator_runs_in_the_background_and_keeps_its_name() -> None:
    @background(max_prefetch=3)
    def count(start: int, *, stop: int) -> Iterator[int]:
        """Counts."""
        assert threading.current_thread() is not threading.main_thread()
        yield from range(start, stop)

    generator = count(2, stop=5)
    assert isinstance(generator, BackgroundGenerator)
    assert list(generator) == [2, 3, 4]
    assert (count.__name__, count.__doc__) == ("count", "Counts.")


def test_dataloaderx_accepts_dataloader_arguments_and_prefetches() -> None:
    made_in: list[Any] = []

    def note(index: int) -> int:
        made_in.append(threading.current_thread())
        return index

    plain = DataLoader(Numbers(10), 4)
    loader: DataLoaderX[Any] = DataLoaderX(Numbers(10, note), 4, depth=3)
    assert [numbers(loader), numbers(loader)] == [numbers(plain)] * 2
    assert len(loader) == 3
    assert all(isinstance(thread, BackgroundThread) for thread in made_in)


def test_dataloaderx_accepts_prefetch_options() -> None:
    def double(images: torch.Tensor) -> torch.Tensor:
        return images * 2

    loader: DataLoaderX[Any] = DataLoaderX(Numbers(10), 5, device="cpu", depth=1, preparation=double)
    assert numbers(loader) == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]
    assert (loader.stats().batches, loader.stats().samples, loader.stats().depth) == (2, 10, 1)
    with pytest.raises(OptionError, match="depth must be at least 1, got -1"):
        DataLoaderX(Numbers(), depth=-1)
    with pytest.raises(ValueError, match="sampler option is mutually exclusive with shuffle"):
        DataLoaderX(Numbers(), shuffle=True, sampler=[1])
