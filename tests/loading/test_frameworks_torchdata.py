"""A PrefetchLoader around torchdata's StatefulDataLoader saves and loads its state."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from dbloader import PrefetchLoader
from dbloader.sampling import SeededBatchSampler, ShuffleSampler
from dbloader.sampling.permutation import Permutation
from tests.support.loaders import Numbers, numbers
from tests.support.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls set_vital

LENGTH = 22


class Streamed(IterableDataset[int]):
    """A dataset that yields each worker's indices and has a state."""

    given = 0
    skip = 0

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        begin, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self.given, self.skip = self.skip, 0
        for index in itertools.islice(range(begin, LENGTH, step), self.given, None):
            self.given += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["given"]


def make(front: Any, kind: str, workers: int, **options: Any) -> Any:
    dataset: Any = Streamed() if kind == "streamed" else Numbers(LENGTH)
    if kind == "shuffled":
        options["sampler"] = RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
    return front(StatefulDataLoader(dataset, 3, num_workers=workers, **options))


def read(batches: Any, count: int | None = None) -> list[list[int]]:
    return numbers(itertools.islice(batches, count))


def compared(run: Callable[[Any], list[list[list[int]]]]) -> list[list[list[int]]]:
    """Return what a run reads through a PrefetchLoader. Check that the run reads the same without a PrefetchLoader."""
    behind = run(PrefetchLoader)
    assert behind == run(lambda loader: loader)
    return behind


RARELY: dict[str, Any] = {"snapshot_every_n_steps": 3, "persistent_workers": True}
NIGHTLY = [(kind, received, 2, RARELY) for kind in ("mapped", "shuffled", "streamed") for received in (0, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "received", "workers", "options"),
    [("mapped", 7, 2, {}), *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY)],
)
def test_prefetched_stateful_loader_resumes_like_the_plain_loader(
    kind: str, received: int, workers: int, options: dict[str, Any]
) -> None:
    def run(front: Any) -> list[list[list[int]]]:
        first, second, third = (make(front, kind, workers, **options) for _ in range(3))
        iterator = iter(first)
        seen = [read(iterator, received)]
        if received and isinstance(first, PrefetchLoader):
            wait_for(lambda: first.stats().ahead > received, "a prefetched batch")
        state = first.state_dict()
        seen.append(read(iterator))
        second.load_state_dict(state)
        iterator = iter(second)
        seen.append(read(iterator, 1))
        third.load_state_dict(second.state_dict())
        seen += [read(third), read(third), read(iterator)]
        return seen

    behind = compared(run)
    if kind == "mapped":  # for other kinds of loaders, torchdata itself loses or repeats samples
        assert behind[1] == [*behind[2], *behind[-1]]


@pytest.mark.slow
def test_state_between_epochs_is_the_beginning_of_the_next_epoch() -> None:
    def run(front: Any) -> list[list[list[int]]]:
        loader, again = (make(front, "mapped", 1, persistent_workers=True) for _ in range(2))
        before = loader.state_dict()
        iterator = iter(loader)
        between = loader.state_dict()
        seen = [read(iterator)]
        again.load_state_dict(loader.state_dict())
        seen += [read(loader), read(again)]
        for state in (before, between):
            loader.load_state_dict(state)
            seen.append(read(loader))
        return seen

    behind = compared(run)
    assert [len(epoch) for epoch in behind] == [8] * 5


@pytest.mark.parametrize(("keyed", "workers"), [(False, 0), (True, 1)])
def test_set_epoch_overrides_the_state_of_a_stateful_loader(keyed: bool, workers: int) -> None:
    def make_ours() -> tuple[ShuffleSampler, Any]:
        sampler = ShuffleSampler(range(LENGTH))
        order: Any = (
            {"batch_sampler": SeededBatchSampler(sampler, 3)} if keyed else {"batch_size": 3, "sampler": sampler}
        )
        return sampler, StatefulDataLoader(Numbers(LENGTH), num_workers=workers, **order)

    def train(sampler: ShuffleSampler, loader: Any, epoch: int) -> list[int]:
        sampler.set_epoch(epoch)
        return [number for batch in read(loader) for number in batch]

    sampler, loader = make_ours()
    orders = [Permutation(LENGTH, 0, epoch)(np.arange(LENGTH)).tolist() for epoch in range(3)]
    assert train(sampler, loader, 0) == orders[0]
    resumed, again = make_ours()
    again.load_state_dict(loader.state_dict())
    assert [train(resumed, again, epoch) for epoch in (1, 2)] == orders[1:]
