"""Ranks that train together divide the samples exactly once."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from torch.utils.data import BatchSampler, DataLoader, Subset

from dbloader.errors import OptionError
from dbloader.loading.prefetch import PrefetchLoader
from dbloader.sampling import OrderedSampler, ShuffleSampler
from tests.support.children import run_ranks

LENGTH = 25


def error_of(**options: Any) -> str:
    try:
        list(PrefetchLoader(DataLoader(**options)))
    except OptionError as error:
        return str(error)
    return ""


def epochs(loader: PrefetchLoader[Any], count: int) -> list[list[int]]:
    return [[number for batch in loader for number in batch.tolist()] for _ in range(count)]


def train(rank: int, early: ShuffleSampler, folder: Path) -> None:
    """Train as one of two processes, and write the received samples to a file."""
    os.environ["WORLD_SIZE"] = "2"
    samplers = (early, ShuffleSampler(range(5), rank=0), ShuffleSampler(range(5), 5, 4))
    whole: Any = range(LENGTH)
    own = Subset(whole, range(rank, LENGTH, 2))

    def make() -> PrefetchLoader[Any]:
        return PrefetchLoader(DataLoader(own, 4, sampler=ShuffleSampler(own, num_replicas=1, rank=0)))

    first, resumed = make(), make()
    batches = iter(first)
    next(batches)
    resumed.load_state_dict(first.state_dict())
    seen = {
        "ranks": [(sampler.num_replicas, sampler.rank) for sampler in samplers],
        "refused": [
            error_of(dataset=dataset, shuffle=shuffle, batch_size=size)
            for dataset in (whole, own)
            for shuffle in (True, False)
            for size in (4, None)
        ],
        "evaluated": epochs(PrefetchLoader(DataLoader(whole, 4, sampler=OrderedSampler(whole, 1, 0))), 1),
        "shared": epochs(PrefetchLoader(DataLoader(whole, 4, sampler=ShuffleSampler(whole))), 2),
        "parts": epochs(make(), 2),
        "rest": [[number for batch in batches for number in batch.tolist()], *epochs(resumed, 1)],
    }
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    torch.distributed.barrier()  # no process may end while the other still connects


def test_two_processes_divide_the_samples_and_refuse_loaders_that_do_not(tmp_path: Path) -> None:
    early = ShuffleSampler(range(5))  # created before the process group
    run_ranks(partial(train, early=early, folder=tmp_path), tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, seen in enumerate(ranks):
        assert seen["ranks"] == [[2, rank], [2, 0], [5, 4]]
        assert len(seen["refused"]) == 8
        for number, message in enumerate(seen["refused"]):
            shuffle, name = (True, "ShuffleSampler") if number % 4 < 2 else (False, "OrderedSampler")
            assert f"shuffle={shuffle} does not share the samples among the 2 processes" in message
            assert f"pass sampler={name}(dataset) instead" in message
            assert f"{name}(dataset, num_replicas=1, rank=0)" in message
        assert seen["evaluated"] == [[*range(LENGTH)]]
        assert [sorted(epoch) for epoch in seen["parts"]] == [[*range(rank, LENGTH, 2)]] * 2
        assert seen["parts"][0] != seen["parts"][1]
        assert seen["rest"][0] == seen["rest"][1] == seen["parts"][0][4:]
    for epoch in range(2):
        shared = [number for seen in ranks for number in seen["shared"][epoch]]
        assert {*shared} == {*range(LENGTH)}
        assert len(shared) == LENGTH + 1  # one sample is repeated, so both ranks get the same number


@pytest.mark.parametrize("derived", [False, True])
def test_second_division_of_the_samples_by_accelerate_is_refused(derived: bool) -> None:
    from accelerate.data_loader import BatchSamplerShard

    class Derived(BatchSamplerShard):  # type: ignore[misc,unused-ignore]
        pass

    kind = Derived if derived else BatchSamplerShard
    for world, shards in ((2, 2), (1, 2), (2, 1)):
        batches = kind(BatchSampler(ShuffleSampler(range(LENGTH), world, 0), 2, drop_last=False), shards, 0)
        if world == shards:
            with pytest.raises(OptionError, match=rf"accelerate\.data_loader\.{kind.__name__} would share them again"):
                list(batches)
        else:
            assert len(list(batches)) == 7


def test_sampler_in_several_processes_needs_a_process_group_or_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    # constructing is allowed before the process group is initialized, and iterating is not
    sampler = ShuffleSampler(range(5))
    for use in (len, list):
        with pytest.raises(OptionError, match=r"init_process_group\(\) first, .* because WORLD_SIZE is 2"):
            use(sampler)
    assert len(ShuffleSampler(range(5), 1, 0)) == 5
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert len(ShuffleSampler(range(5))) == 5
