"""Headspace is the first batch of a loader again and again: a training without its data."""

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from dbloader.errors import LoaderError, OptionError
from dbloader.loading.headspace import Headspace
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.sampling import SeededBatchSampler, ShuffleSampler

DATA: Any = list(range(10))


def test_it_gives_the_first_batch_as_often_as_the_loader_has_batches() -> None:
    head = Headspace(PrefetchLoader(DataLoader(DATA, 4)))
    first, second = list(head), list(head)
    assert [batch.tolist() for batch in first] == [[0, 1, 2, 3]] * 3
    assert len({id(batch) for batch in first + second}) == 1
    assert len(head) == 3


def test_or_as_often_as_asked() -> None:
    head = Headspace(itertools.count(7), batches=4)
    assert list(head) == [7, 7, 7, 7]
    assert len(head) == 4


def test_it_takes_one_batch_and_leaves_nothing_of_the_loader_running() -> None:
    notes: list[str] = []

    class Noted:
        def __iter__(self) -> Iterator[int]:
            notes.append("begin")
            try:
                yield from (1, 2, 3)
            finally:
                notes.append("end")

    head = Headspace(Noted(), 2)
    assert notes == []
    assert list(head) == list(head) == [1, 1]
    assert notes == ["begin", "end"]


def test_workers_end_when_the_batch_is_there() -> None:
    head = Headspace(PrefetchLoader(DataLoader(DATA, 4, num_workers=1)))
    assert len(list(head)) == 3  # the fixture of all tests counts threads and processes


def test_a_training_finds_what_it_asks_the_loader_for_but_no_state() -> None:
    loader = PrefetchLoader(DataLoader(DATA, 4, sampler=ShuffleSampler(DATA)))
    head = Headspace(loader)
    assert head.dataset is DATA
    assert head.sampler is loader.sampler
    head.set_epoch(3)
    assert loader.sampler.epoch == 3
    assert hasattr(loader, "state_dict")
    for name in ("state_dict", "load_state_dict", "_batches_of", "nonsense"):
        assert not hasattr(head, name)


def test_batches_of_tensors_are_those_on_the_device() -> None:
    head = Headspace(PrefetchLoader([torch.zeros(2)], device="cpu"))
    assert next(iter(head)).device == torch.device("cpu")


def test_a_loader_without_batches_or_length_is_told() -> None:
    with pytest.raises(LoaderError, match="the loader has no batch that could be given again and again"):
        list(Headspace([], 3))
    with pytest.raises(TypeError, match=r"object of type 'itertools.count' has no len\(\)"):
        list(Headspace(itertools.count()))
    with pytest.raises(OptionError, match="batches must be at least 1, got 0"):
        Headspace(DATA, 0)


def test_where_the_loader_is_stays_as_it_was() -> None:
    data: Any = range(20)
    loader: Any = PrefetchLoader(DataLoader(data, batch_sampler=SeededBatchSampler(ShuffleSampler(data), 4)))
    deque(loader, maxlen=0)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    deque(Headspace(loader), maxlen=0)
    assert loader.state_dict() == state
    assert len(list(loader)) == 5
