"""Worker processes make a batch together while the training waits for it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from dbloader import LMDBDataset, PrefetchLoader, Record, create_loader
from dbloader.decoding import RandomResizedCrop
from dbloader.errors import LoaderError
from dbloader.loading.board import Board
from dbloader.sampling import OrderedSampler
from tests.support.children import run_ranks
from tests.support.images import photo
from tests.support.loaders import Numbers, batches_of, numbers, process_loader
from tests.support.samples import same
from tests.support.stores import store_samples

WAIT_S = 20.0  # only a broken test waits so long
FIRST_PART = 2  # samples of a dataset in Python; images are decoded in parts of 16
BATCH = 2 * FIRST_PART


class Meeting:
    """Calls a function for each sample, and makes two processes share a batch.

    The first sample of the first part and the first sample of the second part wait for each other, once.
    """

    def __init__(self, function: Callable[[int], Any] = int, second: int = FIRST_PART) -> None:
        self.arrived = {index: multiprocessing.Event() for index in (0, second)}
        self.function = function

    def __call__(self, index: int) -> Any:
        if index in self.arrived and not self.arrived[index].is_set():
            self.arrived[index].set()
            assert all(event.wait(WAIT_S) for event in self.arrived.values())
        return self.function(index)


def pid_of(index: int) -> int:
    return os.getpid()


def test_free_worker_makes_a_part_of_the_last_batch() -> None:
    (pids,) = numbers(batches_of(process_loader(Numbers(BATCH, Meeting(pid_of)), BATCH, num_workers=2)))
    assert len({*pids[:FIRST_PART]}) == len({*pids[FIRST_PART:]}) == 1
    assert pids[0] != pids[FIRST_PART]


@pytest.mark.parametrize("fields", [("image", "label"), ("label", "name")])
def test_batch_made_by_two_processes_equals_the_batch_made_by_threads(tmp_path: Path, fields: tuple[str, ...]) -> None:
    place = tmp_path / "photos.lmdb"
    store_samples((Record(f"{n}.jpg", n, photo(n)) for n in range(32)), place)

    def loader(function: Callable[[int], Any], workers: Any) -> Any:
        dataset = LMDBDataset(place, decode=RandomResizedCrop(16), fields=fields, target_transform=function)
        options: dict[str, Any] = {"normalize": None, "worker_type": workers, "num_workers": 2}
        return create_loader(dataset, batch_size=32, sampler=OrderedSampler(dataset), **options)

    assert same(list(loader(Meeting(second=16), "processes")), list(loader(int, "threads")))


def test_helper_reads_only_the_part_that_it_makes(tmp_path: Path) -> None:
    read: Any = multiprocessing.SimpleQueue()

    class Counting(LMDBDataset):
        def records(self, indices: Sequence[int]) -> Any:
            read.put([*indices])
            return super().records(indices)

    store_samples((Record(f"{n}.jpg", n, photo(n)) for n in range(BATCH)), tmp_path / "photos.lmdb")
    dataset = Counting(tmp_path / "photos.lmdb", fields=("label",), target_transform=Meeting())
    (batch,) = batches_of(process_loader(dataset, BATCH, num_workers=2))
    assert batch["label"].tolist() == [*range(BATCH)]
    assert sorted([read.get(), read.get()], key=len) == [[*range(FIRST_PART, BATCH)], [*range(BATCH)]]
    assert read.empty()


def fail_in_both_parts(index: int) -> int:
    if index in (1, FIRST_PART + 1):
        raise KeyError(f"no record {index}")
    return index


def fail_in_the_second_part(index: int) -> int:
    if index == FIRST_PART:
        raise KeyError("no record 4")
    return index


def test_first_error_of_a_joint_batch_is_raised_with_its_traceback() -> None:
    for function, message in (
        (fail_in_both_parts, "no record 1.*in fail_in_both_parts|in fail_in_both_parts(.|\n)*no record 1"),
        (fail_in_the_second_part, "in fail_in_the_second_part(.|\n)*no record 4"),
    ):
        with pytest.raises(KeyError, match=message):
            batches_of(process_loader(Numbers(BATCH, Meeting(function)), BATCH, num_workers=2))


def unpicklable(index: int) -> Callable[[], int]:
    return lambda: index


def called(samples: list[Callable[[], int]]) -> list[int]:
    return [sample() for sample in samples]


def test_samples_that_cannot_be_pickled_are_made_by_the_worker_that_collates() -> None:
    dataset = Numbers(BATCH, Meeting(unpicklable))
    assert batches_of(process_loader(dataset, BATCH, num_workers=2, collate_fn=called)) == [[*range(BATCH)]]


def large(index: int) -> bytes:
    return bytes([index]) * 5000


def test_parts_larger_than_their_area_are_made_by_the_worker_that_collates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files makes the areas small."""
    monkeypatch.setattr("dbloader.loading.board._LARGEST_STRIDE", 4096)
    for function in (large, fail_in_the_second_part):
        loader = process_loader(Numbers(3 * BATCH, Meeting(function)), BATCH, num_workers=2, collate_fn=list)
        if function is large:
            assert [part for batch in batches_of(loader) for part in batch] == [large(n) for n in range(3 * BATCH)]
        else:
            with pytest.raises(KeyError, match="no record 4"):
                batches_of(loader)


@pytest.mark.nightly  # takes 6 GiB of memory
def test_parts_of_more_than_two_gib_are_stored_whole() -> None:
    board = Board(multiprocessing.get_context(), cells=1)
    board.put(0, 3, b"task")
    large = bytes(2**31) + b"end"
    assert not board.store_parts(0, 1, large)
    assert not board.store_parts(0, 1, b"small")
    stored = board.stored_parts(0)
    is_whole = next(stored) == large
    assert is_whole  # pytest would show the bytes of a comparison
    assert [*stored] == [b"small"]
    board.close()


def die_in_the_second_part(index: int) -> int:
    if index == FIRST_PART:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def test_killed_helper_is_an_error_and_the_next_epoch_has_new_workers() -> None:
    meeting = Meeting(die_in_the_second_part)
    loader = PrefetchLoader(process_loader(Numbers(BATCH, meeting), BATCH, num_workers=2))
    with pytest.raises(LoaderError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed"):
        list(loader)
    gc.collect()
    with pytest.raises(LoaderError, match="is killed by signal: Killed"):
        list(loader)


class Counted:
    """A batch sampler that counts the batches that were asked for."""

    batch_size = BATCH

    def __init__(self, length: int) -> None:
        self.batches = BatchSampler(SequentialSampler(range(length)), BATCH, drop_last=False)
        self.asked = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            self.asked += 1
            yield batch


def test_prefetched_batches_after_a_late_sample_are_all_made() -> None:
    """Sample 0 waits until the samples of all other parts of the batches under way are made."""
    made, rest_made = multiprocessing.Semaphore(0), multiprocessing.Event()
    batches = 1 + 2 * 3  # the batch with sample 0, and three batches for each of two workers

    def late_at_0(index: int) -> int:
        if index == 0:
            assert rest_made.wait(WAIT_S), made
        elif index >= FIRST_PART:
            made.release()
            if made.get_value() == BATCH * batches - FIRST_PART:
                rest_made.set()
        return index

    order = Counted(20 * BATCH)
    loader = process_loader(Numbers(20 * BATCH, late_at_0), num_workers=2, batch_sampler=order, prefetch_factor=3)
    iterator = iter(loader)
    assert order.asked == batches
    assert numbers(batches_of(iterator)) == [[*range(at, at + BATCH)] for at in range(0, 20 * BATCH, BATCH)]


def draw_from_the_global_generators(index: int) -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_draws_from_global_generators_depend_only_on_the_seed_of_torch() -> None:
    def draws(seed: int, workers: int) -> list[Any]:
        torch.manual_seed(seed)
        loader = process_loader(Numbers(32, draw_from_the_global_generators), 8, num_workers=workers)
        return [column.tolist() for _ in range(2) for batch in loader for column in batch.batch]

    first = draws(1, 2)
    assert draws(1, 1) == first
    assert draws(2, 2) != first
    assert len({number for column in first for number in column}) == 3 * 32 * 2


def test_each_rank_draws_other_numbers_from_global_generators(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        torch.manual_seed(1)  # Lightning's seed_everything sets one seed in all ranks
        loader = process_loader(Numbers(16, draw_from_the_global_generators), 8, num_workers=2)
        draws = torch.stack([column for batch in loader for column in batch.batch]).flatten()
        both = [torch.empty_like(draws) for _ in range(2)]
        torch.distributed.all_gather(both, draws)
        assert len({*torch.cat(both).tolist()}) == 2 * draws.numel()

    run_ranks(train, tmp_path)


def test_second_iterator_over_a_loader_ends_the_first() -> None:
    loader = process_loader(Numbers(80), 8, num_workers=2, prefetch_factor=2)
    first = iter(loader)
    next(first)
    assert len(batches_of(loader)) == 10
    with pytest.raises(LoaderError, match="ended by a new iterator over the same loader"):
        next(first)
