"""Two processes that train together: a loader with shuffle=True, and the part of a dataset that each was given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.support.images import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 25

PROGRAM = """
import json, sys
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset
from dbloader import PrefetchLoader, ShuffleSampler
from dbloader.errors import OptionError

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
said = {}

def refused(**options):
    try:
        return [batch.tolist() for batch in PrefetchLoader(DataLoader(batch_size=4, **options))]
    except OptionError as error:
        return str(error)

def epochs(loader, count):
    return [[number for batch in loader for number in batch.tolist()] for _ in range(count)]

whole = range(25)
own = Subset(whole, range(rank, len(whole), 2))
said["whole"] = refused(dataset=whole, shuffle=True)
said["own"] = refused(dataset=own, shuffle=True)
said["shared"] = epochs(PrefetchLoader(DataLoader(whole, 4, sampler=ShuffleSampler(whole))), 2)

def make():
    return PrefetchLoader(DataLoader(own, 4, sampler=ShuffleSampler(own, num_replicas=1, rank=0)))

said["parts"] = epochs(make(), 2)
first, resumed = make(), make()
batches = iter(first)
next(batches)
resumed.load_state_dict(first.state_dict())
said["rest"] = [[number for batch in batches for number in batch.tolist()], *epochs(resumed, 1)]
print(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
"""


def in_two_processes(program: str, meeting: Path) -> list[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(meeting)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        return [json.loads(process.communicate(timeout=WAIT_S)[0]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_a_loader_that_shuffles_in_each_process_is_refused_and_each_remedy_named_trains_on_every_sample_once(
    tmp_path: Path,
) -> None:
    said = in_two_processes(PROGRAM, tmp_path / "meeting")
    for rank, one in enumerate(said):
        for kind in ("whole", "own"):  # which nobody can tell apart
            assert "does not share the samples among the 2 processes" in one[kind]
            assert "pass sampler=ShuffleSampler(dataset) instead" in one[kind]
            assert "ShuffleSampler(dataset, num_replicas=1, rank=0)" in one[kind]
        assert [sorted(epoch) for epoch in one["parts"]] == [[*range(rank, LENGTH, 2)]] * 2
        assert one["parts"][0] != one["parts"][1]
        assert one["rest"][0] == one["rest"][1] == one["parts"][0][4:]
    for epoch in range(2):
        shared = [number for one in said for number in one["shared"][epoch]]
        assert {*shared} == {*range(LENGTH)}
        assert len(shared) == LENGTH + 1  # one is repeated, so that the ranks have equally many
