"""torchdata's StatefulDataLoader resumes over dbloader's samplers, alone and behind a PrefetchLoader."""

import itertools
from typing import Any

import numpy as np
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from dbloader import PrefetchLoader
from dbloader.sampling import SeededBatchSampler, ShuffleSampler
from dbloader.sampling.permutation import Permutation
from tests.support.loaders import Numbers, numbers

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # which torchdata calls

LENGTH = 22


def make_loader(*, seeded: bool, workers: int) -> tuple[ShuffleSampler, Any]:
    sampler = ShuffleSampler(range(LENGTH))
    order: Any = {"batch_sampler": SeededBatchSampler(sampler, 3)} if seeded else {"batch_size": 3, "sampler": sampler}
    return sampler, StatefulDataLoader(Numbers(LENGTH), num_workers=workers, **order)


def read(batches: Any) -> list[int]:
    return [number for batch in numbers(batches) for number in batch]


ORDERS = [Permutation(LENGTH, 0, epoch)(np.arange(LENGTH)).tolist() for epoch in range(3)]


@pytest.mark.parametrize(("seeded", "workers"), [(False, 0), (True, 1)])
def test_state_after_an_epoch_lets_the_chosen_epoch_win(seeded: bool, workers: int) -> None:
    def train(sampler: ShuffleSampler, loader: Any, epoch: int) -> list[int]:
        sampler.set_epoch(epoch)
        return read(loader)

    first = make_loader(seeded=seeded, workers=workers)
    assert train(*first, 0) == ORDERS[0]
    sampler, loader = make_loader(seeded=seeded, workers=workers)
    loader.load_state_dict(first[1].state_dict())
    assert [train(sampler, loader, epoch) for epoch in (1, 2)] == ORDERS[1:]


@pytest.mark.parametrize(("seeded", "workers"), [(True, 0), (False, 1)])
@pytest.mark.parametrize("behind", [False, True])
def test_state_in_an_epoch_continues_its_order(seeded: bool, workers: int, behind: bool) -> None:
    loaders = []
    for _ in range(2):
        sampler, loader = make_loader(seeded=seeded, workers=workers)
        sampler.set_epoch(1)
        loaders.append(PrefetchLoader(loader) if behind else loader)
    first, again = loaders
    iterator = iter(first)
    assert read(itertools.islice(iterator, 2)) == ORDERS[1][:6]
    again.load_state_dict(first.state_dict())
    assert read(again) == ORDERS[1][6:]


def test_stateful_loader_of_another_order_has_no_state_behind_a_prefetch_loader() -> None:
    """Its state counts the batches that it made, not the batches that the consumer received."""
    assert not hasattr(PrefetchLoader(StatefulDataLoader(Numbers(LENGTH), 3, shuffle=True)), "state_dict")
