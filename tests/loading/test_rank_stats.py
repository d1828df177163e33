"""Which rank is slow, and why."""

from __future__ import annotations

import json
import multiprocessing
import socket
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed

from dbloader import create_loader
from dbloader.batches.timed import Work, now
from dbloader.loading.rank_stats import GatheredStats, RankStats
from dbloader.loading.stats import Stats

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 4
WAIT_S = 60


class Images:
    """One of the ranks takes long to read its third batch: until it has read ten times as long as others waited."""

    def __init__(self, others: Any, is_slow: bool) -> None:
        self.others = others  # a queue of what each other rank waited for
        self.is_slow = is_slow

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 4, 4, dtype=torch.uint8), index

    def __getitems__(self, indices: list[int]) -> list[Any]:
        began = now()
        if self.is_slow and min(indices) >= 16:
            longest = max([0.1, *(self.others.get(timeout=WAIT_S) for _ in range(RANKS - 1))])
            while now() - began < 10 * longest:
                pass
        return [self[index] for index in indices]


def train(rank: int, folder: Path, others: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    loader = create_loader(
        Images(others, rank == 2),
        4,
        2,
        device=None,
        mean=None,
        std=None,
        num_workers=0,
        transform=None,
        use_prefetcher=False,
    )
    for _ in loader:
        pass
    if rank != 2:
        others.put(loader.stats().waited_s)
    gathered = loader.stats().gather()
    (folder / f"{rank}.json").write_text(json.dumps([str(gathered), len(gathered.ranks), gathered.ranks[2].rank]))
    torch.distributed.barrier()  # none may end while another one still connects
    torch.distributed.destroy_process_group()


def test_all_ranks_are_told_which_one_reads_slowly(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    others = context.Queue()
    processes = [context.Process(target=train, args=(rank, tmp_path, others)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(WAIT_S)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert all(row == told[0] for row in told)
    text, count, rank = told[0]
    assert (count, rank) == (RANKS, 2)
    assert text.startswith(f"rank 2 (host {socket.gethostname()}) waited "), text
    assert text.endswith(" x the median, for: reading"), text


def test_without_torch_distributed_it_is_the_row_of_this_process() -> None:
    stats = Stats(batches=3, samples=12, steps=2, waited_s=1.5, computed_s=0.5, first_s=4.0, work=Work(1.0, 2.0, 0.25))
    gathered = stats.gather()
    assert gathered.ranks == (
        RankStats(
            rank=0, host=socket.gethostname(), seconds=2.0, waited_s=1.5, first_s=4.0,
            read_s=1.0, decode_s=2.0, collate_s=0.25,
        ),
    )  # fmt: skip
    assert gathered.slowest is None
    assert str(gathered) == "1 rank waited 1.5 to 1.5 s for data: no rank stands out"
    assert Stats().gather().ranks[0].read_s == 0.0


def row(rank: int, waited: float, read: float = 1.0, decode: float = 5.0) -> RankStats:
    return RankStats(
        rank=rank, host=f"b{rank}", seconds=100.0, waited_s=waited, first_s=1.0, read_s=read, decode_s=decode,
        collate_s=0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [row(0, 1), row(1, 1), row(2, 12, read=10), row(3, 1.2)],
            "rank 2 (host b2) waited 12 s for data, 12 x the median, for: reading",
        ),
        (
            [row(0, 0), row(1, 30, decode=40), row(2, 0)],
            "rank 1 (host b1) waited 30 s for data, for: decoding",
        ),
        (
            [row(0, 1), row(1, 30, read=3), row(2, 1)],
            "rank 1 (host b1) waited 30 s for data, 30 x the median, for: nothing that its workers do longer than "
            "others; its CPUs or its copies to the device may be slower",
        ),
        ([row(0, 40), row(1, 50), row(2, 55)], "3 ranks waited 40 to 55 s for data: no rank stands out"),
        ([row(0, 0.1), row(1, 1.9)], "2 ranks waited 0.1 to 1.9 s for data: no rank stands out"),
        ([row(0, 30, 40), row(1, 1)], "rank 0 (host b0) waited 30 s for data, 30 x the median, for: reading"),
    ],
)
def test_a_rank_is_named_that_waits_clearly_longer_than_the_median(rows: list[RankStats], text: str) -> None:
    assert str(GatheredStats(tuple(rows))) == text
